"""Who holds the memory that the driver's lists do not explain. One ``HiddenMemory`` per GPU or MIG instance.

Only the sum can be read, so bytes are followed by what changed and who could have caused it. The books hold what each
candidate is thought to have, and the covariance of that between candidates: how much of the same bytes each could
explain.

* First sight: all of it to those seen on the GPU (if none is, to whom it was granted), by the size of their mappings,
  else equally. Where nobody was looked for until there was enough to explain: to those older than its last growth.
* A rise goes to the first of: those whose mapping moved; those who arrived and have not grown yet; those who began to
  grow; those growing, equally; the youngest; everybody by what they hold. Whoever grows at a steady pace is expected
  to go on, and only what is left looks for a cause. An arrival is a cause whatever the evidence, and of several the
  strongest counts; without any reason, only the strongest evidence present grows. So a mere grant never takes what
  somebody with a device open can explain.
* A rise that slows down waits for a cycle. If by then it has slowed by somebody's pace, that one has stopped; else all
  have slowed down alike.
* A small rise when a process arrives that the driver measures is that one's context, and stays unattributed.
* A fall is taken from all by what they hold, and from what nobody explains.
* Who leaves takes along what it was thought to have. How far that was wrong shows in the sum, and corrects those who
  stay by how much of it they could explain.
* What is within the dead band waits for more. Until then that sliver is divided by what is held, which errs less than
  calling it unattributed: slow growth is somebody's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Self

from otel_gpu.attribution.apportion import apportion, whole_weights
from otel_gpu.attribution.hidden_accounts import (
    MAX_BYTES,
    Account,
    Candidate,
    CandidateId,
    Evidence,
    HiddenSplit,
    Inferred,
    account_from,
    account_state,
    distinct,
    order,
    saved_amount,
    saved_number,
)
from otel_gpu.attribution.hidden_books import Books
from otel_gpu.attribution.hidden_causes import Moment
from otel_gpu.attribution.presence import UNEXPLAINED_BYTES

__all__ = ["Candidate", "CandidateId", "Evidence", "HiddenMemory", "HiddenSplit", "Inferred"]

_JUST_BORN_S: Final = 10.0
_WARM_UP_S: Final = 60.0
"""How long after the first look a candidate may turn up late because its source was not ready."""


class HiddenMemory:
    """The books of one GPU or MIG instance, fed once per cycle. They hold nobody but the candidates present.

    Not to be fed in a cycle in which nobody could look for candidates: here, all of them would have left.
    """

    __slots__ = ("_books", "_cycle", "_first_s", "_last_s")

    def __init__(self) -> None:
        self._books = Books()
        self._first_s: float | None = None
        self._last_s = 0.0
        self._cycle = 0

    def observe(
        self,
        *,
        unknown_bytes: int,
        candidates: Collection[Candidate],
        now_s: float,
        visible_arrivals: int = 0,
        visible_departures: int = 0,
    ) -> HiddenSplit:
        """Divide this cycle's unknown bytes. The counts are of processes that the driver has a figure for."""
        total = float(min(max(0, unknown_bytes), MAX_BYTES))
        now_s = now_s if math.isfinite(now_s) else self._last_s
        self._cycle += 1
        moment = Moment(self._cycle, now_s, max(0.0, now_s - self._last_s), visible_arrivals, visible_departures)
        present = distinct(candidates) if candidates else {}
        if self._first_s is None:
            self._first_s = now_s
            self._books.unexplained, self._books.unexplained_s = total, now_s
            self._open(present.values(), now_s)
            self._books.claim(present)
        else:
            departed = bool(present or self._books.accounts) and self._roll_call(present, moment)
            self._books.follow(total, moment, departed=departed)
        if self._books.accounts:
            self._books.limit()
        self._books.before = total
        self._last_s = now_s
        return self._split(max(0, unknown_bytes))

    # -- who is there -----------------------------------------------------------------------

    def _roll_call(self, present: Mapping[CandidateId, Candidate], moment: Moment) -> bool:
        """Open and close accounts; whether anybody left."""
        accounts = self._books.accounts
        owners = {account.candidate.owner for account in accounts.values()}
        arrived = [candidate for id_, candidate in present.items() if id_ not in accounts]
        gone = [id_ for id_ in accounts if id_ not in present]
        for id_, account in accounts.items():
            account.candidate = present.get(id_, account.candidate)
            if account.mapped is None:
                account.mapped = account.candidate.mapping_bytes
        self._open(arrived, moment.now_s, arriving_s=max(_WARM_UP_S, 4 * moment.since_s))
        departed = False
        for id_ in gone:
            # A grant ends where processes of its workload come into view: they take over what it was thought to hold.
            if heirs := [candidate.id for candidate in arrived if candidate.workload == id_]:
                self._books.hand_over(id_, heirs)
            else:
                departed = True
        for id_ in gone:
            self._books.close(id_)
        # Sources wake up one by one: who turns up late, and is older than bytes that nobody explains, may hold them.
        waking = self._first_s is not None and moment.now_s - self._first_s <= _WARM_UP_S
        # Nor is anybody looked for before there is enough to explain.
        little = not owners and self._books.unexplained < UNEXPLAINED_BYTES
        claimants = [
            candidate
            for candidate in arrived
            if candidate.owner not in owners
            and (waking or little or candidate.evidence is Evidence.GRANTED)
            and candidate.age_s > moment.now_s - self._books.unexplained_s
        ]
        if little and any(candidate.mapping_bytes for candidate in claimants):
            self._books.unexplained = 0.0  # a change like any other, that their mappings explain
        self._books.claim(candidate.id for candidate in claimants)
        return departed

    def _open(self, candidates: Iterable[Candidate], now_s: float, *, arriving_s: float | None = None) -> None:
        """Open accounts, of those there from the start or of arrivals, by how long a grant counts as one.

        An older grant is news to its source only: nothing happened on the GPU.
        """
        accounts = []
        for candidate in candidates:
            arrives = arriving_s is not None and (
                candidate.evidence > Evidence.GRANTED or candidate.age_s <= arriving_s
            )
            mapped = 0 if arrives and candidate.mapping_bytes is not None else candidate.mapping_bytes
            accounts.append(Account(candidate, now_s, arrives or candidate.age_s <= _JUST_BORN_S, mapped))
        self._books.open(accounts)

    # -- the answer -------------------------------------------------------------------------

    def _split(self, unknown_bytes: int) -> HiddenSplit:
        books = self._books
        if not books.accounts:
            return HiddenSplit({}, {}, unknown_bytes)
        ids = list(books.accounts)
        weights = whole_weights({place: books.accounts[id_].held for place, id_ in enumerate(ids)})
        parts = dict.fromkeys(weights, 0)
        if any(weights.values()):
            rest = unknown_bytes - min(unknown_bytes, round(books.contexts + books.unexplained))
            parts, _ = apportion(rest, weights)
        inferred = {id_: Inferred(parts[place], books.confidence([id_])) for place, id_ in enumerate(ids)}
        members: dict[CandidateId, list[CandidateId]] = {}
        for id_, account in books.accounts.items():
            members.setdefault(account.candidate.owner, []).append(id_)
        workloads = {
            owner: inferred[own[0]]
            if len(own) == 1
            else Inferred(sum(inferred[id_].bytes for id_ in own), books.confidence(own))
            for owner, own in sorted(members.items(), key=lambda item: order(item[0]))
        }
        return HiddenSplit(inferred, workloads, unknown_bytes - sum(parts.values()))

    # -- over restarts ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything, as plain data. The candidates of the next cycle are matched by id; the gap is a change."""
        books = self._books
        places = {id_: place for place, id_ in enumerate(books.accounts)}
        return {
            "cycle": self._cycle,
            "first_s": self._first_s,
            "last_s": self._last_s,
            "run": books.run,
            "before": books.before,
            "stalled_s": books.stalled_s,
            "drift": books.drift,
            "contexts": books.contexts,
            "unexplained": books.unexplained,
            "unexplained_s": books.unexplained_s,
            "accounts": [account_state(account) for account in books.accounts.values()],
            "covariance": [[places[i], places[j], value] for i, j, value in books.covariance],
        }

    @classmethod
    def from_state(cls, data: Mapping[str, Any]) -> Self:
        """The books as saved; ``ValueError`` if they are not."""
        self = cls()
        books = self._books
        try:
            self._cycle = int(data["cycle"])
            self._first_s = None if data["first_s"] is None else saved_number(data["first_s"])
            self._last_s, books.unexplained_s = saved_number(data["last_s"]), saved_number(data["unexplained_s"])
            books.contexts, books.unexplained = saved_amount(data["contexts"]), saved_amount(data["unexplained"])
            books.run, books.before = saved_amount(data["run"]), saved_amount(data["before"])
            books.stalled_s, books.drift = saved_amount(data["stalled_s"]), saved_amount(data["drift"])
            accounts = [account_from(state) for state in data["accounts"]]
            books.accounts = {account.candidate.id: account for account in accounts}
            for i, j, value in data["covariance"]:
                if min(i, j) < 0:
                    raise ValueError("a place below 0")
                books.covariance.set(accounts[i].candidate.id, accounts[j].candidate.id, saved_number(value))
        except (KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"hidden memory: not a saved state: {error!r}") from error
        if len(books.accounts) < len(accounts) or list(books.accounts) != sorted(books.accounts, key=order):
            raise ValueError("hidden memory: accounts twice or out of order")
        return self
