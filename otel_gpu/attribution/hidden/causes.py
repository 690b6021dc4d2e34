"""Which candidates caused a change of hidden memory. Pure rules over the holdings; ``estimate`` assigns the result."""

from __future__ import annotations

import math
from collections.abc import Collection
from enum import Enum, auto
from typing import Final, NamedTuple

from otel_gpu.attribution.hidden.candidates import (
    CandidateId,
    Holding,
    Holdings,
    Shares,
    equal_shares,
    normalized,
    with_strongest_evidence,
)

_MIB: Final = 1 << 20
DEAD_BAND_BYTES: Final = 32 * _MIB
CONTEXT_BYTES: Final = 1024 * _MIB
"""More than the context of a process takes beyond the driver's figure for that process."""

_MAPPING_COVERS: Final = 0.25
"""Mappings explain a change if they moved in its direction by at least this fraction of it."""
MAPPING_DOUBT: Final = 0.25
"""Variance of a split by mappings, relative to the variance of an equal split. The accuracy of mappings is unknown."""
_TYPICAL_RATIO: Final = 0.85
"""Resident bytes per mapped byte where nothing better is known."""
_CLEAR: Final = 0.6
"""A candidate with better odds than this gets all of a rise; otherwise the rise is shared by the odds."""
_FIRST_ALLOCATION_S: Final = 4.0
"""Typical run time of a process before it allocates."""
_STEADY: Final = 0.03
"""Relative difference from the pace of those growing above which another cause is looked for."""
_SAME_PACE: Final = 0.1
"""Tolerance when the slow-down of a rise is compared with the pace of a candidate."""
_YOUNG_S: Final = 180.0
_AGEING_S: Final = 60.0


class Poll(NamedTuple):
    """One cycle: its number, its time, the time since the previous one, and arrivals and departures in between.

    The counts are of processes that the driver has a figure for.
    """

    number: int
    now_s: float
    since_s: float
    visible_arrivals: int
    visible_departures: int


class Cause(NamedTuple):
    """Candidates that caused a rise, with the weights to assign it by, and the odds of each; empty for none of them.

    ``has_reason`` is false where they were chosen only for lack of a better rule.
    """

    weights: Shares
    odds: Shares
    has_reason: bool = True


# -- mappings -------------------------------------------------------------------


def initial_shares(holdings: Holdings) -> tuple[Shares, float]:
    """Shares of bytes that were there before the first look, and their uncertainty: by mappings, else equal."""
    sizes = {id_: holding.candidate.mapping_bytes for id_, holding in holdings.items()}
    known = [size for size in sizes.values() if size is not None]
    if sum(known) == 0:
        return equal_shares(holdings), 1.0
    mean = sum(known) / len(known)
    return normalized({id_: mean if size is None else size for id_, size in sizes.items()}), MAPPING_DOUBT


class MappingMoves(NamedTuple):
    """Bytes that changes of mappings explain, per candidate.

    ``doubtful_bytes`` may belong to any of them, by ``odds``. ``ratio`` is set if the ratio of one was learned.
    """

    parts: Shares
    doubtful_bytes: float
    odds: Shares
    ratio: tuple[CandidateId, float] | None


def mapping_moves(holdings: Holdings, gap: float) -> MappingMoves | None:
    """Divide a change by which mappings changed, with the ratios learned so far; ``None`` if they do not explain it."""
    moves = {
        id_: float(holding.candidate.mapping_bytes - holding.mapped_bytes)
        for id_, holding in holdings.items()
        if holding.candidate.mapping_bytes is not None and holding.mapped_bytes is not None
    }
    moves = {id_: move for id_, move in moves.items() if move}
    ups = sum(move for move in moves.values() if move > 0)
    downs = -sum(move for move in moves.values() if move < 0)
    along, against = (ups, downs) if gap >= 0 else (downs, ups)
    if along < _MAPPING_COVERS * abs(gap) or max(abs(gap), min(along, against)) <= DEAD_BAND_BYTES:
        return None
    parts = {id_: ratio * move for id_, move in moves.items() if (ratio := holdings[id_].ratio) is not None}
    unknown = {id_: move for id_, move in moves.items() if id_ not in parts}
    ratio = _common_ratio(unknown.values(), gap - sum(parts.values()))
    parts |= {id_: ratio * move for id_, move in unknown.items()}
    rest = gap - sum(parts.values())
    adjustable = unknown or moves
    odds = normalized({id_: abs(move) for id_, move in adjustable.items()})
    for id_, share in odds.items():
        parts[id_] += share * rest
    doubtful_bytes = sum(abs(parts[id_]) for id_ in unknown) if unknown else abs(rest)
    return MappingMoves(parts, doubtful_bytes, odds, _learned_ratio(adjustable, parts))


def _common_ratio(moves: Collection[float], explained: float) -> float:
    """Resident bytes per mapped byte if these mappings share one ratio; the typical one where they cancel out."""
    net = sum(moves)
    if abs(net) < _MAPPING_COVERS * sum(map(abs, moves)):
        return _TYPICAL_RATIO
    return min(1.0, max(0.0, explained / net)) if net else 0.0


def _learned_ratio(moves: Shares, parts: Shares) -> tuple[CandidateId, float] | None:
    """The ratio of a mapping that changed alone. No more can be resident than is mapped."""
    if len(moves) != 1:
        return None
    ((id_, move),) = moves.items()
    ratio = parts[id_] / move
    return (id_, min(1.0, ratio)) if abs(move) > DEAD_BAND_BYTES and 0.0 < ratio <= 1.05 else None


# -- rises without mappings -----------------------------------------------------


def find_cause(holdings: Holdings, rise: float, total: float, poll: Poll) -> Cause:
    """The candidates that caused a rise which no mapping explains, by the first rule that applies to any candidate."""
    just_s, lately_s = max(10.0, 1.5 * poll.since_s), max(60.0, 4.0 * poll.since_s)
    fresh = {id_: holding for id_, holding in holdings.items() if holding.is_fresh}
    arriving = {id_: holding for id_, holding in fresh.items() if poll.now_s - holding.seen_s <= just_s}
    if not any(holding.seen_s >= poll.now_s for holding in arriving.values()) and (
        rise < CONTEXT_BYTES * poll.visible_arrivals
    ):
        return Cause({}, {})
    growing = {id_: holding for id_, holding in holdings.items() if holding.grew_at >= poll.number - 2}
    starting = {id_: holding for id_, holding in growing.items() if not holding.pace}
    waiting = {id_: holding for id_, holding in fresh.items() if poll.now_s - holding.seen_s <= lately_s}
    if arriving:
        return _first_to_allocate(arriving, poll)
    if starting:
        return _shared(starting)
    if waiting:
        return _first_to_allocate(waiting, poll)
    if growing:
        return _shared(growing)
    return _without_reason(with_strongest_evidence(holdings), rise, total)


def _shared(holdings: Holdings) -> Cause:
    shares = equal_shares(holdings)
    return Cause(shares, shares)


def _first_to_allocate(fresh: Holdings, poll: Poll) -> Cause:
    """The arrival that is due to allocate; arrivals that were first seen together share equally.

    A process that started a moment ago has hardly allocated yet. A process that has waited long may never allocate.
    """
    fresh = with_strongest_evidence(fresh)
    shares = equal_shares(fresh)
    patience_s = max(20.0, 2.0 * poll.since_s)
    ready = {}
    for id_, holding in fresh.items():
        ran_s, waited_s = min(holding.candidate.age_s, poll.since_s), max(0.0, poll.now_s - holding.seen_s)
        ready[id_] = 1e-9 - math.expm1(-ran_s / _FIRST_ALLOCATION_S) * math.exp(-waited_s / patience_s)
    chances = {}
    for id_, holding in fresh.items():
        peers = [peer for peer, other in fresh.items() if _were_seen_together(holding, other)]
        chances[id_] = shares[id_] * sum(ready[peer] for peer in peers) / len(peers)
    return _likeliest(normalized(chances))


def _were_seen_together(one: Holding, other: Holding) -> bool:
    return one.seen_s == other.seen_s


def _likeliest(odds: Shares) -> Cause:
    """All to one whose odds are clear, else by the odds."""
    best = max(odds, key=lambda id_: odds[id_])
    return Cause({best: 1.0} if odds[best] > _CLEAR else odds, odds)


def _without_reason(holdings: Holdings, rise: float, total: float) -> Cause:
    """The youngest, if the rise is large and any is young; else all, by what they hold and a little more."""
    young = {id_: a.candidate.age_s for id_, a in holdings.items() if a.candidate.age_s < _YOUNG_S}
    if young and rise >= max(256 * _MIB, 0.02 * total):
        cause = _likeliest(normalized({id_: math.exp(-age_s / _AGEING_S) + 0.01 for id_, age_s in young.items()}))
        return cause._replace(has_reason=len(cause.weights) == 1)
    mean = math.fsum(holding.held_bytes for holding in holdings.values()) / len(holdings)
    held = normalized({id_: holding.held_bytes + 0.1 * mean for id_, holding in holdings.items()})
    shares = held if mean > 0 else equal_shares(holdings)
    return Cause(shares, shares, has_reason=False)


# -- rises of candidates that grow at a steady pace -----------------------------


class Growth(Enum):
    """What a rise is, against the growth that is expected of the candidates with a pace."""

    SURPLUS = auto()
    """More than expected: the surplus has a cause."""

    STEADY = auto()
    """As expected."""

    SLOWER = auto()
    """Less than expected in two cycles: one has stopped, or all have slowed down."""

    STALLED = auto()
    """Less than expected in this cycle: one stopped within it, and the rise of the next one shows which."""

    ENDED = auto()
    """None, where growth was expected."""

    NONE = auto()
    """None, and none was expected."""


class Rise(NamedTuple):
    """A change of the total that is not a fall, in bytes.

    ``unassigned_bytes`` are all bytes that no candidate has yet, ``cycle_bytes`` the change in this cycle: they differ
    by what waits within the dead band, or since a rise that slowed down (``has_stalled``) in the previous cycle.
    ``expected`` is the growth at the paces of the candidates, over the same time as ``unassigned_bytes``.
    """

    unassigned_bytes: float
    cycle_bytes: float
    expected: Shares
    has_stalled: bool

    @property
    def surplus_bytes(self) -> float:
        """How much it exceeds the expected growth; negative for a shortfall."""
        return self.unassigned_bytes - math.fsum(self.expected.values())

    @property
    def growth(self) -> Growth:
        """What it is. A small shortfall waits like any difference within the dead band."""
        tolerance = max(float(DEAD_BAND_BYTES), _STEADY * math.fsum(self.expected.values()))
        if self.surplus_bytes > tolerance:
            return Growth.SURPLUS
        if not self.expected:
            return Growth.NONE
        if self.surplus_bytes >= -tolerance:
            return Growth.STEADY
        if self.has_stalled:
            return Growth.SLOWER
        return Growth.ENDED if self.cycle_bytes <= DEAD_BAND_BYTES / 16 else Growth.STALLED


def find_stopped(paces: Shares, drop: float) -> CandidateId | None:
    """The candidate whose pace equals the drop of a rise, both in bytes per cycle; ``None`` if none is near it."""
    best = min(paces, key=lambda id_: abs(paces[id_] - drop))
    return best if abs(paces[best] - drop) <= max(_SAME_PACE * drop, DEAD_BAND_BYTES / 16) else None
