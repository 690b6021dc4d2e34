"""The books of hidden memory: who is thought to hold what, and how a change of the sum is booked.

They hold nobody but the candidates present. Who comes and goes is told from outside; what is booked here always adds
up to the sum, but for what waits in the dead band.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

from otel_gpu.attribution.covariance import Covariance
from otel_gpu.attribution.hidden_accounts import NEVER, Account, CandidateId, Evidence, Shares, normal, order, strongest
from otel_gpu.attribution.hidden_causes import (
    CONTEXT_BYTES,
    DEAD_BAND_BYTES,
    MAPPING_DOUBT,
    Moment,
    find_cause,
    first_sight,
    mapping_moves,
    who_stopped,
)

_STEADY: Final = 0.03
"""How far growth may be off the pace of those growing before another cause is looked for."""
_LONGEST_PACE_S: Final = 60.0
"""After a longer gap, who grew before it says nothing of who grew in it."""


class Books:
    """What each candidate is thought to hold, how sure that is, and what nobody holds. Bytes, as floats.

    ``contexts`` are those of processes that the driver measures. ``unexplained`` is what nobody could hold, and
    ``unexplained_s`` when it last grew, and ``drift`` (bytes per second) how fast in the cycle before. ``run`` is how
    far the rise under way has come. ``before`` is the sum of the cycle before, and ``stalled_s`` for how long a rise
    that slowed down has not been booked, to see in the next cycle who stopped.
    """

    __slots__ = (
        "accounts",
        "before",
        "contexts",
        "covariance",
        "drift",
        "run",
        "stalled_s",
        "unexplained",
        "unexplained_s",
    )

    def __init__(self) -> None:
        self.accounts: dict[CandidateId, Account] = {}
        self.covariance: Covariance[CandidateId] = Covariance()
        self.contexts = 0.0
        self.unexplained = 0.0
        self.unexplained_s = 0.0
        self.run = 0.0
        self.before = 0.0
        self.drift = 0.0
        self.stalled_s = 0.0

    # -- who is there -----------------------------------------------------------------------

    def open(self, accounts: Iterable[Account]) -> None:
        """Take in accounts of those who are new."""
        self.accounts |= {account.candidate.id: account for account in accounts}
        self.accounts = {id_: self.accounts[id_] for id_ in sorted(self.accounts, key=order)}

    def close(self, gone: CandidateId) -> None:
        """End an account."""
        del self.accounts[gone]
        self.covariance.drop(gone)

    def hand_over(self, gone: CandidateId, heirs: Collection[CandidateId]) -> None:
        """Give what one was thought to hold to others, in equal parts."""
        held = self.accounts[gone].held
        for heir in heirs:
            self.accounts[heir].held = held / len(heirs)
        self.covariance.replace(gone, heirs)
        self.covariance.add(held, dict.fromkeys(heirs, 1.0 / len(heirs)))

    def claim(self, ids: Iterable[CandidateId]) -> None:
        """First sight: what nobody explains goes to the strongest evidence, by mappings, else equally."""
        claimants = strongest({id_: self.accounts[id_] for id_ in ids})
        if not claimants or self.unexplained <= 0:
            return
        shares, doubt = first_sight(claimants)
        self.covariance.add(self.unexplained, shares, doubt)
        for id_, share in shares.items():
            account = self.accounts[id_]
            account.held += share * self.unexplained
            account.fresh, account.mapped = False, account.candidate.mapping_bytes
            account.pace = self.drift if len(shares) == 1 else 0.0
        self.unexplained = 0.0

    # -- what changed -----------------------------------------------------------------------

    def follow(self, total: float, moment: Moment, *, departed: bool) -> None:
        """Book what the sum shows in this cycle; ``departed``: somebody left, and took along what it had."""
        self.drift = 0.0
        self._after_a_gap(moment.since_s)
        gap = self._gap(total)
        if gap < 0 and -gap < CONTEXT_BYTES * moment.visible_departures and not departed:
            self.contexts -= min(self.contexts, -gap)
        if not self.accounts:
            self._leave_unexplained(total, moment)
            return
        if departed:
            self._correct(gap, moment)
        gap = self._gap(total)
        if self._move_by_mappings(gap, moment) or self._shrink(gap):
            self.run = 0.0
            self._settle(total)
        elif not self._grow(gap, gap if departed else total - self.before, total, moment):
            self.run = 0.0
            return
        if not self.stalled_s:
            for account in self.accounts.values():
                account.mapped = account.candidate.mapping_bytes

    def _after_a_gap(self, since_s: float) -> None:
        if not 0 < since_s <= _LONGEST_PACE_S:
            self._end_paces()
        if since_s > _LONGEST_PACE_S:
            for account in self.accounts.values():
                account.grew_at = NEVER

    def _leave_unexplained(self, total: float, moment: Moment) -> None:
        """Nobody could hold it."""
        gap = self._gap(total)
        if 0 < gap < CONTEXT_BYTES * moment.visible_arrivals:
            self.contexts += gap
        elif gap > DEAD_BAND_BYTES:  # what is less waits, so that slow growth is growth too
            self.unexplained_s = moment.now_s
            self.unexplained += gap
        self.contexts = min(self.contexts, total)
        self.unexplained = min(self.unexplained, total - self.contexts)
        self.stalled_s = 0.0
        self.drift = max(0.0, total - self.before) / moment.since_s if moment.since_s > 0 else 0.0

    def _gap(self, total: float) -> float:
        """What the sum shows beyond what the books say."""
        return total - self.contexts - self.unexplained - self._held()

    def _held(self) -> float:
        return math.fsum([account.held for account in self.accounts.values()])

    def _correct(self, gap: float, moment: Moment) -> None:
        """Somebody left: give those who stay what the sum now shows. An arrival may as well have caused a rise."""
        doubt = self.covariance.variance(self.accounts)
        if doubt <= DEAD_BAND_BYTES**2:
            return
        arrivals = any(account.fresh and account.seen_s >= moment.now_s for account in self.accounts.values())
        part = doubt / (doubt + gap * gap) if arrivals and gap > 0 else 1.0
        held = self._held() + part * gap
        for id_, share in self.covariance.learn_sum(part).items():
            self.accounts[id_].held += share * part * gap
        self._rescale(held)

    def _move_by_mappings(self, gap: float, moment: Moment) -> bool:
        moves = mapping_moves(self.accounts, gap)
        if moves is None:
            return False
        self._end_paces()
        for id_, part in moves.parts.items():
            account = self.accounts[id_]
            account.held += part
            if part > 0:
                account.fresh, account.grew_at = False, moment.cycle
        if moves.ratio is not None:
            self.accounts[moves.ratio[0]].ratio = moves.ratio[1]
        self.covariance.add(moves.doubtful, moves.odds, MAPPING_DOUBT)
        return True

    def _shrink(self, gap: float) -> bool:
        if gap >= -DEAD_BAND_BYTES:
            return False
        self._end_paces()
        held = self._held()
        if held > 0:
            loss = gap * held / (held + self.unexplained)
            shares = normal({id_: account.held for id_, account in self.accounts.items()})
            for id_, share in shares.items():
                self.accounts[id_].held += loss * share
            self.covariance.add(loss, shares)
            self.unexplained = max(0.0, self.unexplained + gap - loss)
        return True

    def _grow(self, gap: float, rise: float, total: float, moment: Moment) -> bool:
        """Book a rise; whether there was one. ``rise`` is that of this cycle, ``gap`` all that is not booked yet.

        What is expected and does not quite come waits like any sliver.
        """
        stalled_s, self.stalled_s = self.stalled_s, 0.0
        if stalled_s and any(account.seen_s >= moment.now_s for account in self.accounts.values()):
            # With somebody new in it, this cycle no longer tells who stopped in the one before.
            self._slow_down(gap - rise, gap - rise, stalled_s, moment)
            gap, stalled_s = rise, 0.0
        expected = {id_: a.pace * (stalled_s + moment.since_s) for id_, a in self.accounts.items() if a.pace}
        steady = math.fsum(expected.values())
        tolerance = max(float(DEAD_BAND_BYTES), _STEADY * steady)
        if gap - steady > tolerance:
            self._rise(gap - steady, rise, expected, total, moment)
            self._settle(total)
        elif not expected:
            return False
        elif gap - steady >= -tolerance:
            self._go_on(expected, moment)
        elif stalled_s:
            self._stop(gap, rise, expected, moment)
            self._settle(total)
        elif rise <= DEAD_BAND_BYTES / 16:
            self._end_paces()
            return False
        else:
            self.stalled_s = moment.since_s  # who stopped did so in the midst of it: the next cycle shows its pace
        return True

    def _go_on(self, parts: Shares, moment: Moment) -> None:
        """Those growing at a pace have grown by this much."""
        self._add(parts, parts)
        for id_ in parts:
            self.accounts[id_].grew_at = moment.cycle

    def _stop(self, gap: float, rise: float, expected: Shares, moment: Moment) -> None:
        """Less came than was expected: by the pace of one, who has stopped, or else all have slowed down alike."""
        paces = {id_: self.accounts[id_].pace * moment.since_s for id_ in expected}
        stopped = who_stopped(paces, math.fsum(paces.values()) - rise)
        if stopped is None:
            self._slow_down(gap, rise, moment.since_s, moment)
            return
        going = {id_: part for id_, part in expected.items() if id_ != stopped}
        self._go_on(going, moment)
        account = self.accounts[stopped]
        account.held += gap - math.fsum(going.values())
        account.pace, account.grew_at = 0.0, NEVER

    def _slow_down(self, gap: float, rise: float, rise_s: float, moment: Moment) -> None:
        """Book a gap to those growing, by their paces. ``rise`` in the last ``rise_s`` shows how fast they now are."""
        paces = {id_: account.pace for id_, account in self.accounts.items() if account.pace}
        slower = min(1.0, max(0.0, rise) / (rise_s * math.fsum(paces.values())))
        self._go_on({id_: max(0.0, gap) * share for id_, share in normal(paces).items()}, moment)
        for id_, pace in paces.items():
            self.accounts[id_].pace = slower * pace if slower * pace * rise_s > DEAD_BAND_BYTES / 4 else 0.0

    def _rise(self, surplus: float, rise: float, expected: Shares, total: float, moment: Moment) -> None:
        cause = find_cause(self.accounts, surplus, total, moment)
        if not cause.weights:
            self.contexts += surplus
            self._go_on(expected, moment)
            return
        ids = [id_ for id_ in self.accounts if id_ in expected or id_ in cause.odds]
        parts = {id_: expected.get(id_, 0.0) + surplus * cause.weights.get(id_, 0.0) for id_ in ids}
        odds = {id_: expected.get(id_, 0.0) + surplus * cause.odds.get(id_, 0.0) for id_ in ids}
        self._add(parts, odds)
        now = rise - math.fsum(self.accounts[id_].pace for id_ in expected) * moment.since_s
        building = 0 < now < surplus - DEAD_BAND_BYTES / 16
        for id_, part in parts.items():
            account = self.accounts[id_]
            if id_ in expected or (cause.telling and part > DEAD_BAND_BYTES / 4):
                # The first cycle of growth is seen in part only; from the second on there is a pace.
                if moment.since_s > 0 and (building or account.grew_at == moment.cycle - 1):
                    account.pace += (now if building else surplus) * cause.weights.get(id_, 0.0) / moment.since_s
                account.fresh, account.grew_at = False, moment.cycle

    def _add(self, parts: Shares, odds: Shares) -> None:
        """Book a rise: ``parts`` in bytes, which may as well have been ``odds``."""
        for id_, part in parts.items():
            self.accounts[id_].held += part
        # A mistake at the start of a long rise is made again in each of its cycles: their errors add up, not the
        # squares of them.
        before, self.run = self.run, self.run + math.fsum(parts.values())
        self.covariance.add(math.sqrt(max(0.0, self.run**2 - before**2)), normal(odds))

    def _end_paces(self) -> None:
        self.stalled_s = 0.0
        for account in self.accounts.values():
            account.pace = 0.0

    def _settle(self, total: float) -> None:
        """Make the books add up to the sum."""
        self.contexts = min(self.contexts, total)
        self.unexplained = min(self.unexplained, total - self.contexts)
        self._rescale(total - self.contexts - self.unexplained)

    def _rescale(self, held: float) -> None:
        for account in self.accounts.values():
            account.held = max(0.0, account.held)
        before = self._held()
        if before > 0:
            for account in self.accounts.values():
                account.held *= max(0.0, held) / before

    # -- how sure it is ---------------------------------------------------------------------

    def limit(self) -> None:
        """Keep the doubt about each within what can be true."""
        self.covariance.limit({id_: account.held for id_, account in self.accounts.items()})

    def confidence(self, ids: Collection[CandidateId]) -> float:
        """Held² / (held² + variance), halved as far as a grant is the only evidence."""
        accounts = [self.accounts[id_] for id_ in ids]
        trust = [0.5 if account.candidate.evidence is Evidence.GRANTED else 1.0 for account in accounts]
        held = math.fsum(account.held for account in accounts)
        if held <= 0:
            return max(trust)
        trusted = math.fsum(account.held * part for account, part in zip(accounts, trust, strict=True)) / held
        return min(1.0, trusted * held * held / (held * held + self.covariance.variance(ids)))
