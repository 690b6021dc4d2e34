"""Who holds the memory that the driver's lists do not explain. One ``HiddenMemory`` per GPU or MIG instance.

Only the sum can be read, so bytes are followed by what changed and who could have caused it. The books hold what each
candidate is thought to have, and the covariance of that between candidates: how much of the same bytes each could
explain.

* First sight: all of it to those seen on the GPU (if none is, to whom it was granted), by the size of their mappings,
  else equally.
* A rise goes to the first of: those whose mapping moved; those who arrived and have not grown yet; those who began to
  grow; those growing, equally; the youngest; everybody by what they hold. Whoever grows at a steady pace is expected
  to go on, and only what is left looks for a cause. An arrival is a cause whatever the evidence, and of several the
  strongest counts; without any reason, only the strongest evidence present grows. So a mere grant never takes what
  somebody with a device open can explain.
* A small rise when a process arrives that the driver measures is that one's context, and stays unattributed.
* A fall is taken from all by what they hold, and from what nobody explains.
* Who leaves takes along what it was thought to have. How far that was wrong shows in the sum, and corrects those who
  stay by how much of it they could explain.
* What is within the dead band waits for more. Until then that sliver is divided by what is held, which errs less than
  calling it unattributed: slow growth is somebody's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from otel_gpu.attribution.apportion import apportion, whole_weights
from otel_gpu.attribution.covariance import Covariance
from otel_gpu.attribution.hidden_accounts import (
    MAX_BYTES,
    NEVER,
    Account,
    Candidate,
    CandidateId,
    Evidence,
    HiddenSplit,
    Inferred,
    Shares,
    account_from,
    account_state,
    distinct,
    normal,
    order,
    saved_amount,
    saved_number,
    strongest,
)
from otel_gpu.attribution.hidden_causes import (
    CONTEXT_BYTES,
    DEAD_BAND_BYTES,
    MAPPING_DOUBT,
    Moment,
    find_cause,
    first_sight,
    mapping_moves,
)

__all__ = ["Candidate", "CandidateId", "Evidence", "HiddenMemory", "HiddenSplit", "Inferred"]

_STEADY: Final = 0.03
"""How far growth may be off the pace of those growing before another cause is looked for."""
_LONGEST_PACE_S: Final = 60.0
"""After a longer gap, who grew before it says nothing of who grew in it."""
_JUST_BORN_S: Final = 10.0
_WARM_UP_S: Final = 60.0
"""How long after the first look a candidate may turn up late because its source was not ready."""


class HiddenMemory:
    """The books of one GPU or MIG instance, fed once per cycle. They hold nobody but the candidates present.

    Not to be fed in a cycle in which nobody could look for candidates: here, all of them would have left.
    """

    __slots__ = (
        "_accounts",
        "_contexts",
        "_covariance",
        "_cycle",
        "_first_s",
        "_last_s",
        "_run",
        "_unexplained",
        "_unexplained_s",
    )

    def __init__(self) -> None:
        self._accounts: dict[CandidateId, Account] = {}
        self._covariance: Covariance[CandidateId] = Covariance()
        self._contexts = 0.0
        self._unexplained = 0.0
        self._unexplained_s = 0.0
        self._first_s: float | None = None
        self._last_s = 0.0
        self._run = 0.0
        self._cycle = 0

    def observe(
        self,
        *,
        unknown_bytes: int,
        candidates: Iterable[Candidate],
        now_s: float,
        visible_arrivals: int = 0,
        visible_departures: int = 0,
    ) -> HiddenSplit:
        """Divide this cycle's unknown bytes. The counts are of processes that the driver has a figure for."""
        total = float(min(max(0, unknown_bytes), MAX_BYTES))
        now_s = now_s if math.isfinite(now_s) else self._last_s
        self._cycle += 1
        moment = Moment(self._cycle, now_s, max(0.0, now_s - self._last_s), visible_arrivals, visible_departures)
        present = distinct(candidates)
        if self._first_s is None:
            self._first_s = now_s
            self._unexplained, self._unexplained_s = total, now_s
            self._open(present.values(), now_s)
            self._claim(self._accounts)
        else:
            departed = self._roll_call(present, moment)
            self._follow(total, moment, departed=departed)
        self._covariance.limit({id_: account.held for id_, account in self._accounts.items()})
        self._last_s = now_s
        return self._split(max(0, unknown_bytes))

    # -- who is there -----------------------------------------------------------------------

    def _roll_call(self, present: Mapping[CandidateId, Candidate], moment: Moment) -> bool:
        """Open and close accounts; whether anybody left."""
        owners = {account.candidate.owner for account in self._accounts.values()}
        arrived = [candidate for id_, candidate in present.items() if id_ not in self._accounts]
        gone = [id_ for id_ in self._accounts if id_ not in present]
        for id_, account in self._accounts.items():
            account.candidate = present.get(id_, account.candidate)
            if account.mapped is None:
                account.mapped = account.candidate.mapping_bytes
        self._open(arrived, moment.now_s, arriving_s=max(_WARM_UP_S, 4 * moment.since_s))
        departed = [id_ for id_ in gone if not self._hand_over(id_, arrived)]
        for id_ in gone:
            del self._accounts[id_]
            self._covariance.drop(id_)
        # Sources wake up one by one: who turns up late, and is older than bytes that nobody explains, may hold them.
        waking = self._first_s is not None and moment.now_s - self._first_s <= _WARM_UP_S
        self._claim(
            candidate.id
            for candidate in arrived
            if candidate.owner not in owners
            and (waking or candidate.evidence is Evidence.GRANTED)
            and candidate.age_s > moment.now_s - self._unexplained_s
        )
        return bool(departed)

    def _open(self, candidates: Iterable[Candidate], now_s: float, *, arriving_s: float | None = None) -> None:
        """Open accounts, of those there from the start or of arrivals, by how long a grant counts as one.

        An older grant is news to its source only: nothing happened on the GPU.
        """
        for candidate in candidates:
            arrives = arriving_s is not None and (
                candidate.evidence > Evidence.GRANTED or candidate.age_s <= arriving_s
            )
            mapped = 0 if arrives and candidate.mapping_bytes is not None else candidate.mapping_bytes
            self._accounts[candidate.id] = Account(candidate, now_s, arrives or candidate.age_s <= _JUST_BORN_S, mapped)
        self._accounts = {id_: self._accounts[id_] for id_ in sorted(self._accounts, key=order)}

    def _hand_over(self, gone: CandidateId, arrived: Iterable[Candidate]) -> bool:
        """A grant ends where processes of its workload come into view: they take over what it was thought to hold."""
        heirs = [candidate.id for candidate in arrived if candidate.workload == gone]
        if not heirs:
            return False
        held = self._accounts[gone].held
        for heir in heirs:
            self._accounts[heir].held = held / len(heirs)
        self._covariance.replace(gone, heirs)
        self._covariance.add(held, dict.fromkeys(heirs, 1.0 / len(heirs)))
        return True

    def _claim(self, ids: Iterable[CandidateId]) -> None:
        """First sight: what nobody explains goes to the strongest evidence, by mappings, else equally."""
        claimants = strongest({id_: self._accounts[id_] for id_ in ids})
        if not claimants or self._unexplained <= 0:
            return
        shares, doubt = first_sight(claimants)
        self._covariance.add(self._unexplained, shares, doubt)
        for id_, share in shares.items():
            account = self._accounts[id_]
            account.held += share * self._unexplained
            account.fresh, account.mapped = False, account.candidate.mapping_bytes
        self._unexplained = 0.0

    # -- what changed -----------------------------------------------------------------------

    def _follow(self, total: float, moment: Moment, *, departed: bool) -> None:
        if not 0 < moment.since_s <= _LONGEST_PACE_S:
            self._end_paces()
        if moment.since_s > _LONGEST_PACE_S:
            for account in self._accounts.values():
                account.grew_at = NEVER
        gap = self._gap(total)
        if gap < 0 and -gap < CONTEXT_BYTES * moment.visible_departures and not departed:
            self._contexts -= min(self._contexts, -gap)
        if not self._accounts:
            self._leave_unexplained(total, moment)
            return
        if departed:
            self._correct(gap, moment)
        gap = self._gap(total)
        if self._move_by_mappings(gap) or self._shrink(gap):
            self._run = 0.0
            self._settle(total)
        elif not self._grow(gap, total, moment):
            self._run = 0.0
            return
        for account in self._accounts.values():
            account.mapped = account.candidate.mapping_bytes

    def _leave_unexplained(self, total: float, moment: Moment) -> None:
        """Nobody could hold it."""
        gap = self._gap(total)
        if 0 < gap < CONTEXT_BYTES * moment.visible_arrivals:
            self._contexts += gap
        elif gap > DEAD_BAND_BYTES:
            self._unexplained_s = moment.now_s
        self._contexts = min(self._contexts, total)
        self._unexplained = total - self._contexts

    def _gap(self, total: float) -> float:
        """What the sum shows beyond what the books say."""
        return total - self._contexts - self._unexplained - self._held()

    def _held(self) -> float:
        return math.fsum(account.held for account in self._accounts.values())

    def _correct(self, gap: float, moment: Moment) -> None:
        """Somebody left: give those who stay what the sum now shows. An arrival may as well have caused a rise."""
        doubt = self._covariance.variance(self._accounts)
        if doubt <= DEAD_BAND_BYTES**2:
            return
        arrivals = any(account.fresh and account.seen_s >= moment.now_s for account in self._accounts.values())
        part = doubt / (doubt + gap * gap) if arrivals and gap > 0 else 1.0
        held = self._held() + part * gap
        for id_, share in self._covariance.learn_sum(part).items():
            self._accounts[id_].held += share * part * gap
        self._rescale(held)

    def _move_by_mappings(self, gap: float) -> bool:
        moves = mapping_moves(self._accounts, gap)
        if moves is None:
            return False
        self._end_paces()
        for id_, part in moves.parts.items():
            account = self._accounts[id_]
            account.held += part
            if part > 0:
                account.fresh, account.grew_at = False, self._cycle
        if moves.ratio is not None:
            self._accounts[moves.ratio[0]].ratio = moves.ratio[1]
        self._covariance.add(moves.doubtful, moves.odds, MAPPING_DOUBT)
        return True

    def _shrink(self, gap: float) -> bool:
        if gap >= -DEAD_BAND_BYTES:
            return False
        self._end_paces()
        held = self._held()
        if held > 0:
            loss = gap * held / (held + self._unexplained)
            shares = normal({id_: account.held for id_, account in self._accounts.items()})
            for id_, share in shares.items():
                self._accounts[id_].held += loss * share
            self._covariance.add(loss, shares)
            self._unexplained = max(0.0, self._unexplained + gap - loss)
        return True

    def _grow(self, gap: float, total: float, moment: Moment) -> bool:
        """Book a rise; whether there was one. What is expected and does not quite come waits like any sliver."""
        expected = {id_: a.pace * moment.since_s for id_, a in self._accounts.items() if a.pace}
        steady = math.fsum(expected.values())
        tolerance = max(float(DEAD_BAND_BYTES), _STEADY * steady)
        if gap - steady > tolerance:
            self._rise(gap - steady, expected, total, moment)
            self._settle(total)
            return True
        if gap - steady < -tolerance and gap <= DEAD_BAND_BYTES:
            self._end_paces()
            return False
        if not expected:
            return False
        if gap - steady < -tolerance:
            self._go_on({id_: part * gap / steady for id_, part in expected.items()}, moment)
            self._settle(total)
        else:
            self._go_on(expected, moment)
        return True

    def _go_on(self, parts: Shares, moment: Moment) -> None:
        """Those growing at a pace have grown by this much."""
        self._add(parts, parts)
        for id_, part in parts.items():
            account = self._accounts[id_]
            account.pace = part / moment.since_s if part > DEAD_BAND_BYTES / 4 else 0.0
            account.grew_at = self._cycle

    def _rise(self, surplus: float, expected: Shares, total: float, moment: Moment) -> None:
        cause = find_cause(self._accounts, surplus, total, moment)
        if not cause.weights:
            self._contexts += surplus
            self._go_on(expected, moment)
            return
        ids = [id_ for id_ in self._accounts if id_ in expected or id_ in cause.odds]
        parts = {id_: expected.get(id_, 0.0) + surplus * cause.weights.get(id_, 0.0) for id_ in ids}
        odds = {id_: expected.get(id_, 0.0) + surplus * cause.odds.get(id_, 0.0) for id_ in ids}
        self._add(parts, odds)
        for id_, part in parts.items():
            account = self._accounts[id_]
            if id_ in expected or (cause.telling and part > DEAD_BAND_BYTES / 4):
                # The first cycle of growth is seen in part only; from the second on there is a pace.
                paced = moment.since_s > 0 and account.grew_at == self._cycle - 1
                account.pace = part / moment.since_s if paced else 0.0
                account.fresh, account.grew_at = False, self._cycle

    def _add(self, parts: Shares, odds: Shares) -> None:
        """Book a rise: ``parts`` in bytes, which may as well have been ``odds``."""
        for id_, part in parts.items():
            self._accounts[id_].held += part
        # A mistake at the start of a long rise is made again in each of its cycles: their errors add up, not the
        # squares of them.
        before, self._run = self._run, self._run + math.fsum(parts.values())
        self._covariance.add(math.sqrt(self._run**2 - before**2), normal(odds))

    def _end_paces(self) -> None:
        for account in self._accounts.values():
            account.pace = 0.0

    def _settle(self, total: float) -> None:
        """Make the books add up to the sum."""
        self._contexts = min(self._contexts, total)
        self._unexplained = min(self._unexplained, total - self._contexts)
        self._rescale(total - self._contexts - self._unexplained)

    def _rescale(self, held: float) -> None:
        for account in self._accounts.values():
            account.held = max(0.0, account.held)
        before = self._held()
        if before > 0:
            for account in self._accounts.values():
                account.held *= max(0.0, held) / before

    # -- the answer -------------------------------------------------------------------------

    def _split(self, unknown_bytes: int) -> HiddenSplit:
        ids = list(self._accounts)
        weights = whole_weights({place: self._accounts[id_].held for place, id_ in enumerate(ids)})
        parts = dict.fromkeys(weights, 0)
        if any(weights.values()):
            rest = unknown_bytes - min(unknown_bytes, round(self._contexts + self._unexplained))
            parts, _ = apportion(rest, weights)
        inferred = {id_: Inferred(parts[place], self._confidence([id_])) for place, id_ in enumerate(ids)}
        members: dict[CandidateId, list[CandidateId]] = {}
        for id_, account in self._accounts.items():
            members.setdefault(account.candidate.owner, []).append(id_)
        workloads = {
            owner: inferred[own[0]]
            if len(own) == 1
            else Inferred(sum(inferred[id_].bytes for id_ in own), self._confidence(own))
            for owner, own in sorted(members.items(), key=lambda item: order(item[0]))
        }
        return HiddenSplit(inferred, workloads, unknown_bytes - sum(parts.values()))

    def _confidence(self, ids: list[CandidateId]) -> float:
        """Held² / (held² + variance), halved as far as a grant is the only evidence."""
        accounts = [self._accounts[id_] for id_ in ids]
        trust = [0.5 if account.candidate.evidence is Evidence.GRANTED else 1.0 for account in accounts]
        held = math.fsum(account.held for account in accounts)
        if held <= 0:
            return max(trust)
        trusted = math.fsum(account.held * part for account, part in zip(accounts, trust, strict=True)) / held
        return min(1.0, trusted * held * held / (held * held + self._covariance.variance(ids)))

    # -- over restarts ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything, as plain data. The candidates of the next cycle are matched by id; the gap is a change."""
        places = {id_: place for place, id_ in enumerate(self._accounts)}
        return {
            "cycle": self._cycle,
            "first_s": self._first_s,
            "last_s": self._last_s,
            "run": self._run,
            "contexts": self._contexts,
            "unexplained": self._unexplained,
            "unexplained_s": self._unexplained_s,
            "accounts": [account_state(account) for account in self._accounts.values()],
            "covariance": [[places[i], places[j], value] for i, j, value in self._covariance],
        }

    @classmethod
    def from_state(cls, data: Mapping[str, Any]) -> Self:
        """The books as saved; ``ValueError`` if they are not."""
        self = cls()
        try:
            self._cycle = int(data["cycle"])
            self._first_s = None if data["first_s"] is None else saved_number(data["first_s"])
            self._last_s, self._unexplained_s = saved_number(data["last_s"]), saved_number(data["unexplained_s"])
            self._contexts, self._unexplained = saved_amount(data["contexts"]), saved_amount(data["unexplained"])
            self._run = saved_amount(data["run"])
            accounts = [account_from(state) for state in data["accounts"]]
            self._accounts = {account.candidate.id: account for account in accounts}
            for i, j, value in data["covariance"]:
                if min(i, j) < 0:
                    raise ValueError("a place below 0")
                self._covariance.set(accounts[i].candidate.id, accounts[j].candidate.id, saved_number(value))
        except (KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"hidden memory: not a saved state: {error!r}") from error
        if len(self._accounts) < len(accounts) or list(self._accounts) != sorted(self._accounts, key=order):
            raise ValueError("hidden memory: accounts twice or out of order")
        return self
