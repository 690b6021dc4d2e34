"""Estimate of what each candidate holds with its covariance, and how a change of the total is assigned to them.

Only candidates that are present have a holding. ``inference`` decides which arrive and depart. All parts
together are always the total, except for a difference within the dead band.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

from otel_gpu.attribution.hidden.candidates import (
    NEVER,
    CandidateId,
    Evidence,
    Holding,
    Shares,
    normalized,
    with_strongest_evidence,
)
from otel_gpu.attribution.hidden.causes import (
    CONTEXT_BYTES,
    DEAD_BAND_BYTES,
    MAPPING_DOUBT,
    Growth,
    MappingMoves,
    Poll,
    Rise,
    find_cause,
    find_stopped,
    initial_shares,
    mapping_moves,
)

K = TypeVar("K", bound=Hashable)

MOST_PAIRED: Final = 128
"""With more keys than this only variances are kept: the cost of all pairs grows with the square."""

_LONGEST_PACE_S: Final = 60.0
"""After a longer gap, growth before the gap does not show which candidates grew in it."""


class MemoryEstimate:
    """Estimated bytes per candidate with their covariance, and bytes of none of them. Bytes are floats.

    ``context_bytes`` are contexts of processes that the driver has a figure for. ``unexplained_bytes`` are bytes that
    no candidate could hold; ``unexplained_s`` is when they last grew, and ``drift`` (bytes per second) how fast in the
    previous cycle. ``rise_bytes`` is the size of the rise in progress. ``previous_bytes`` is the total of the previous
    cycle. ``stalled_s`` is the time over which a rise that slowed down is not assigned yet: the next cycle shows which
    candidate stopped.
    """

    __slots__ = (
        "context_bytes",
        "covariance",
        "drift",
        "holdings",
        "previous_bytes",
        "rise_bytes",
        "stalled_s",
        "unexplained_bytes",
        "unexplained_s",
    )

    def __init__(self) -> None:
        self.holdings: dict[CandidateId, Holding] = {}
        self.covariance: Covariance[CandidateId] = Covariance()
        self.context_bytes = 0.0
        self.unexplained_bytes = 0.0
        self.unexplained_s = 0.0
        self.rise_bytes = 0.0
        self.previous_bytes = 0.0
        self.drift = 0.0
        self.stalled_s = 0.0

    # -- arrivals and departures ----------------------------------------------------

    def close(self, id_: CandidateId) -> None:
        """Remove the holding of a candidate that has departed, with what it was estimated to hold."""
        del self.holdings[id_]
        self.covariance.drop(id_)

    def transfer(self, id_: CandidateId, successors: Collection[CandidateId]) -> None:
        """Give what a candidate was estimated to hold to others, in equal parts."""
        held_bytes = self.holdings[id_].held_bytes
        for successor in successors:
            self.holdings[successor].held_bytes = held_bytes / len(successors)
        self.covariance.replace(id_, successors)
        self.covariance.add(held_bytes, dict.fromkeys(successors, 1.0 / len(successors)))

    def assign_unexplained(self, ids: Iterable[CandidateId]) -> None:
        """Give the unexplained bytes to the candidates with the strongest evidence, by mappings, else equally."""
        claimants = with_strongest_evidence({id_: self.holdings[id_] for id_ in ids})
        if not claimants or self.unexplained_bytes <= 0:
            return
        shares, doubt = initial_shares(claimants)
        self.covariance.add(self.unexplained_bytes, shares, doubt)
        for id_, share in shares.items():
            holding = self.holdings[id_]
            holding.held_bytes += share * self.unexplained_bytes
            holding.is_fresh, holding.mapped_bytes = False, holding.candidate.mapping_bytes
            holding.pace = self.drift if len(shares) == 1 else 0.0
        self.unexplained_bytes = 0.0

    # -- changes of the total -------------------------------------------------------

    def update(self, total: float, poll: Poll, *, departed: bool) -> None:
        """Assign the change of the total in this cycle. ``departed``: a candidate left with what it held."""
        self.drift = 0.0
        self._end_paces_after_gap(poll.since_s)
        gap = self._gap(total)
        if gap < 0 and -gap < CONTEXT_BYTES * poll.visible_departures and not departed:
            self.context_bytes -= min(self.context_bytes, -gap)
        if not self.holdings:
            self._leave_unexplained(total, poll)
            return
        if departed:
            self._correct(gap, poll)
        gap = self._gap(total)
        moves = mapping_moves(self.holdings, gap)
        if moves is not None:
            self._end_rise()
            self._move(moves, poll)
            self._balance(total)
        elif gap < -DEAD_BAND_BYTES:
            self._end_rise()
            self._shrink(gap)
            self._balance(total)
        else:
            rise = self._resume_rise(gap, gap if departed else total - self.previous_bytes, poll)
            if not self._grow(rise, total, poll):
                return
        if not self.stalled_s:
            for holding in self.holdings.values():
                holding.mapped_bytes = holding.candidate.mapping_bytes

    def _end_paces_after_gap(self, since_s: float) -> None:
        if not 0 < since_s <= _LONGEST_PACE_S:
            self._end_paces()
        if since_s > _LONGEST_PACE_S:
            for holding in self.holdings.values():
                holding.grew_at = NEVER

    def _leave_unexplained(self, total: float, poll: Poll) -> None:
        """Assign a change without candidates."""
        gap = self._gap(total)
        if 0 < gap < CONTEXT_BYTES * poll.visible_arrivals:
            self.context_bytes += gap
        elif gap > DEAD_BAND_BYTES:  # smaller gaps accumulate, so that slow growth is detected
            self.unexplained_s = poll.now_s
            self.unexplained_bytes += gap
        self._limit_unattributed(total)
        self.stalled_s = 0.0
        self.drift = max(0.0, total - self.previous_bytes) / poll.since_s if poll.since_s > 0 else 0.0

    def _gap(self, total: float) -> float:
        """The total minus all that is accounted for."""
        return total - self.context_bytes - self.unexplained_bytes - self._held_bytes()

    def _held_bytes(self) -> float:
        return math.fsum([holding.held_bytes for holding in self.holdings.values()])

    def _correct(self, gap: float, poll: Poll) -> None:
        """After a departure, correct the others by what the total shows, by how much of it each could explain.

        A candidate that arrived in the same cycle may have caused a rise as well: then only a part is corrected, the
        smaller the larger the gap is against the standard deviation of the estimate.
        """
        variance = self.covariance.variance(self.holdings)
        if variance <= DEAD_BAND_BYTES**2:
            return
        arrivals = any(holding.is_fresh and holding.seen_s >= poll.now_s for holding in self.holdings.values())
        part = variance / (variance + gap * gap) if arrivals and gap > 0 else 1.0
        held_bytes = self._held_bytes() + part * gap
        for id_, share in self.covariance.learn_sum(part).items():
            self.holdings[id_].held_bytes += share * part * gap
        self._rescale(held_bytes)

    def _move(self, moves: MappingMoves, poll: Poll) -> None:
        """Assign a change that mappings explain."""
        for id_, part in moves.parts.items():
            holding = self.holdings[id_]
            holding.held_bytes += part
            if part > 0:
                holding.is_fresh, holding.grew_at = False, poll.number
        if moves.ratio is not None:
            self.holdings[moves.ratio[0]].ratio = moves.ratio[1]
        self.covariance.add(moves.doubtful_bytes, moves.odds, MAPPING_DOUBT)

    def _shrink(self, gap: float) -> None:
        """Assign a fall, by what each holds."""
        held_bytes = self._held_bytes()
        if held_bytes > 0:
            loss = gap * held_bytes / (held_bytes + self.unexplained_bytes)
            shares = normalized({id_: holding.held_bytes for id_, holding in self.holdings.items()})
            for id_, share in shares.items():
                self.holdings[id_].held_bytes += loss * share
            self.covariance.add(loss, shares)
            self.unexplained_bytes = max(0.0, self.unexplained_bytes + gap - loss)

    def _resume_rise(self, gap: float, cycle_bytes: float, poll: Poll) -> Rise:
        """The rise to assign, with what waits since the previous cycle, and what is expected of it.

        After an arrival what waits is assigned at once.
        """
        stalled_s, self.stalled_s = self.stalled_s, 0.0
        if stalled_s and any(holding.seen_s >= poll.now_s for holding in self.holdings.values()):
            # With an arrival, this cycle does not show which candidate stopped in the previous one.
            before = gap - cycle_bytes
            self._slow_down(before, before, stalled_s, poll)
            gap, stalled_s = cycle_bytes, 0.0
        expected = {id_: a.pace * (stalled_s + poll.since_s) for id_, a in self.holdings.items() if a.pace}
        return Rise(gap, cycle_bytes, expected, has_stalled=stalled_s > 0)

    def _grow(self, rise: Rise, total: float, poll: Poll) -> bool:
        """Assign a rise; whether there was one."""
        match rise.growth:
            case Growth.SURPLUS:
                self._assign_surplus(rise, total, poll)
                self._balance(total)
            case Growth.STEADY:
                self._accrue(rise.expected, poll)
            case Growth.SLOWER:
                self._stop(rise, poll)
                self._balance(total)
            case Growth.STALLED:
                self.stalled_s = poll.since_s
            case Growth.ENDED:
                self._end_rise()
                return False
            case Growth.NONE:
                self.rise_bytes = 0.0
                return False
        return True

    def _accrue(self, parts: Shares, poll: Poll) -> None:
        """Assign growth at a steady pace, in bytes."""
        self._add(parts, parts)
        for id_ in parts:
            self.holdings[id_].grew_at = poll.number

    def _stop(self, rise: Rise, poll: Poll) -> None:
        """Assign less growth than expected: one has stopped if its pace is missing, else all have slowed down alike."""
        paces = {id_: self.holdings[id_].pace * poll.since_s for id_ in rise.expected}
        stopped = find_stopped(paces, math.fsum(paces.values()) - rise.cycle_bytes)
        if stopped is None:
            self._slow_down(rise.unassigned_bytes, rise.cycle_bytes, poll.since_s, poll)
            return
        growing = {id_: part for id_, part in rise.expected.items() if id_ != stopped}
        self._accrue(growing, poll)
        holding = self.holdings[stopped]
        holding.held_bytes += rise.unassigned_bytes - math.fsum(growing.values())
        holding.pace, holding.grew_at = 0.0, NEVER

    def _slow_down(self, gap: float, latest_bytes: float, latest_s: float, poll: Poll) -> None:
        """Assign a gap to those growing, by their paces. The rise in the last ``latest_s`` shows their pace now."""
        paces = {id_: holding.pace for id_, holding in self.holdings.items() if holding.pace}
        if not paces:  # all that grew have departed
            return
        slower = min(1.0, max(0.0, latest_bytes) / (latest_s * math.fsum(paces.values())))
        self._accrue({id_: max(0.0, gap) * share for id_, share in normalized(paces).items()}, poll)
        for id_, pace in paces.items():
            self.holdings[id_].pace = slower * pace if slower * pace * latest_s > DEAD_BAND_BYTES / 4 else 0.0

    def _assign_surplus(self, rise: Rise, total: float, poll: Poll) -> None:
        """Assign the expected growth, and a surplus to its cause."""
        surplus, expected = rise.surplus_bytes, rise.expected
        cause = find_cause(self.holdings, surplus, total, poll)
        if not cause.weights:
            self.context_bytes += surplus
            self._accrue(expected, poll)
            return
        ids = [id_ for id_ in self.holdings if id_ in expected or id_ in cause.odds]
        parts = {id_: expected.get(id_, 0.0) + surplus * cause.weights.get(id_, 0.0) for id_ in ids}
        odds = {id_: expected.get(id_, 0.0) + surplus * cause.odds.get(id_, 0.0) for id_ in ids}
        self._add(parts, odds)
        now = rise.cycle_bytes - math.fsum(self.holdings[id_].pace for id_ in expected) * poll.since_s
        is_building = 0 < now < surplus - DEAD_BAND_BYTES / 16
        for id_, part in parts.items():
            holding = self.holdings[id_]
            if id_ in expected or (cause.has_reason and part > DEAD_BAND_BYTES / 4):
                # The first cycle shows only a part of the growth; from the second on there is a pace.
                if poll.since_s > 0 and (is_building or holding.grew_at == poll.number - 1):
                    holding.pace += (now if is_building else surplus) * cause.weights.get(id_, 0.0) / poll.since_s
                holding.is_fresh, holding.grew_at = False, poll.number

    def _add(self, parts: Shares, odds: Shares) -> None:
        """Assign a rise: ``parts`` are its bytes by candidate, ``odds`` the parts that are as likely."""
        for id_, part in parts.items():
            self.holdings[id_].held_bytes += part
        # A wrong cause at the start of a long rise is wrong in each of its cycles: the errors add up, not their
        # squares. So the variance of the whole rise is that of its size squared.
        before, self.rise_bytes = self.rise_bytes, self.rise_bytes + math.fsum(parts.values())
        self.covariance.add(math.sqrt(max(0.0, self.rise_bytes**2 - before**2)), normalized(odds))

    def _end_rise(self) -> None:
        self.rise_bytes = 0.0
        self._end_paces()

    def _end_paces(self) -> None:
        self.stalled_s = 0.0
        for holding in self.holdings.values():
            holding.pace = 0.0

    def _balance(self, total: float) -> None:
        """Scale all that is accounted for to the total."""
        self._limit_unattributed(total)
        self._rescale(total - self.context_bytes - self.unexplained_bytes)

    def _limit_unattributed(self, total: float) -> None:
        self.context_bytes = min(self.context_bytes, total)
        self.unexplained_bytes = min(self.unexplained_bytes, total - self.context_bytes)

    def _rescale(self, held_bytes: float) -> None:
        for holding in self.holdings.values():
            holding.held_bytes = max(0.0, holding.held_bytes)
        before = self._held_bytes()
        if before > 0:
            for holding in self.holdings.values():
                holding.held_bytes *= max(0.0, held_bytes) / before

    # -- confidence -----------------------------------------------------------------

    def confidence(self, ids: Collection[CandidateId]) -> float:
        """Confidence in the sum of these, 0 to 1: held² / (held² + variance). Bytes by grant alone count half."""
        holdings = [self.holdings[id_] for id_ in ids]
        trust = [0.5 if holding.candidate.evidence is Evidence.GRANTED else 1.0 for holding in holdings]
        held = math.fsum(holding.held_bytes for holding in holdings)
        if held <= 0:
            return max(trust)
        trusted = math.fsum(holding.held_bytes * part for holding, part in zip(holdings, trust, strict=True)) / held
        return min(1.0, trusted * held * held / (held * held + self.covariance.variance(ids)))


# ---------------------------------------------------------------------------- covariance


class Covariance(Generic[K]):
    """A symmetric matrix by key, in squared units of the amounts. A missing entry is 0."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[K, dict[K, float]] = {}

    def __iter__(self) -> Iterator[tuple[K, K, float]]:
        """Every entry, rows in the order of their insertion."""
        return ((i, j, value) for i, row in self._rows.items() for j, value in row.items())

    def set(self, i: K, j: K, value: float) -> None:
        """Set one entry."""
        self._rows.setdefault(i, {})[j] = value

    def variance(self, keys: Collection[K]) -> float:
        """Variance of the sum of these amounts."""
        rows = [row for i in keys if (row := self._rows.get(i)) is not None]
        return max(0.0, math.fsum(row[j] for row in rows for j in keys if j in row))

    def add(self, amount: float, odds: Mapping[K, float], doubt: float = 1.0) -> None:
        """Add the uncertainty of an amount that one of several keys got, with these odds p, times ``doubt``.

        The covariance of such a choice is that of a multinomial of one trial: C += amount²·(diag p - p·pᵀ).
        """
        if len(odds) < 2:
            return
        scale = doubt * amount * amount
        for i, p in odds.items():
            row = self._rows.setdefault(i, {})
            for j in _paired(i, odds):
                row[j] = row.get(j, 0.0) + scale * ((p if i == j else 0.0) - p * odds[j])

    def drop(self, key: K) -> None:
        """Remove a key. The others keep what they could explain of its amount."""
        self._rows.pop(key, None)
        for row in self._rows.values():
            row.pop(key, None)

    def replace(self, key: K, successors: Collection[K]) -> None:
        """Replace a key by several, each with an equal part of its amount."""
        old = self._rows.get(key, {})
        part = 1.0 / len(successors)
        for i in successors:
            for j, value in old.items():
                if j != key:
                    self.set(i, j, part * value)
                    self.set(j, i, part * value)
            for j in successors:
                self.set(i, j, part * part * old.get(key, 0.0))
        self.drop(key)

    def learn_sum(self, part: float = 1.0) -> dict[K, float]:
        """Condition on the sum of all amounts, which became known (to this part); the share of each in its error.

        A Kalman update with the sum as the measurement: v = C·1, q = 1ᵀ·v, shares v/q, C -= v·vᵀ/q.
        """
        gains = {i: math.fsum(row.values()) for i, row in self._rows.items()}
        total = math.fsum(gains.values())
        if total <= 0:
            return {}
        for i, gain in gains.items():
            row = self._rows[i]
            for j in _paired(i, gains):
                row[j] = row.get(j, 0.0) - part * gain * gains[j] / total
        return {i: gain / total for i, gain in gains.items()}

    def limit(self, amounts: Mapping[K, float]) -> None:
        """Scale variances down to what is possible for amounts between 0 and their sum.

        Such an amount has a variance of at most mean·(sum - mean) (Bhatia and Davis, 2000).
        """
        everything = math.fsum(amounts.values())
        scale = {}
        for i, row in self._rows.items():
            most, own = max(0.0, amounts[i] * (everything - amounts[i])), row.get(i, 0.0)
            scale[i] = math.sqrt(most / own) if own > most else 1.0
        if min(scale.values(), default=1.0) < 1.0:
            for i, row in self._rows.items():
                for j in row:
                    row[j] *= scale[i] * scale[j]


def _paired(key: K, keys: Collection[K]) -> Collection[K]:
    return keys if len(keys) <= MOST_PAIRED else (key,)
