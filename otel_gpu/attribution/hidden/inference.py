"""Memory that the driver's lists do not explain, divided among candidates. One ``HiddenMemory`` per GPU or instance.

Only the total can be read. So bytes are followed by what changed and which candidates could have caused it. The
estimate has the bytes of each candidate and their covariance: how much of the same bytes several could explain.

* First look: all bytes go to the candidates seen on the GPU (without any, to those that were granted it), by the size
  of their mappings, else equally. Where the search for candidates starts only once there is enough to explain: to
  those older than the last growth.
* A rise goes to the first of: those whose mapping changed; those that arrived and have not grown yet; those that
  started to grow; those growing, equally; the youngest; all, by what they hold. A candidate that grows at a steady
  pace is expected to continue, and only the rest looks for a cause. An arrival is a cause with any evidence, and of
  several the one with the strongest counts. Without a reason, only candidates with the strongest evidence grow. So a
  grant alone never takes bytes that a process with the device open can explain.
* A rise that slows down waits for one cycle. If it has then slowed down by the pace of one candidate, that one has
  stopped; else all have slowed down alike.
* A small rise when a process arrives that the driver has a figure for is the context of that process and stays
  unattributed.
* A fall is taken from all by what they hold, and from unexplained bytes.
* A candidate that departs takes what it was estimated to hold. The total shows the error of that, which corrects the
  others by how much of it they could explain.
* A difference within the dead band waits for more. Until then it is divided by what is held: slow growth belongs to
  some candidate, so this errs less than leaving it unattributed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.apportion import apportion, whole_weights
from otel_gpu.attribution.hidden.candidates import (
    MAX_BYTES,
    Candidate,
    CandidateId,
    Evidence,
    Holding,
    distinct,
    sort_key,
)
from otel_gpu.attribution.hidden.causes import Poll
from otel_gpu.attribution.hidden.estimate import MemoryEstimate
from otel_gpu.attribution.residents import UNEXPLAINED_BYTES
from otel_gpu.attribution.saved_values import amount, number, optional, restoring, whole

_JUST_BORN_S: Final = 10.0
_WARM_UP_S: Final = 60.0
"""Time after the first look in which a candidate may appear late because its source was not ready."""


class Inferred(NamedTuple):
    """Bytes that a candidate probably holds, and the confidence in them, 0 to 1."""

    bytes: int
    confidence: float


class HiddenSplit(NamedTuple):
    """Unknown bytes = Σ inferred + unattributed. ``workloads`` sums the same bytes by workload.

    The confidence of a workload is that of its sum, whichever of its processes holds the bytes.
    """

    inferred: Mapping[CandidateId, Inferred]
    workloads: Mapping[CandidateId, Inferred]
    unattributed_bytes: int


class HiddenMemory:
    """Hidden memory of one GPU or MIG instance, observed once per cycle. Its state grows only with the candidates.

    Skip a cycle in which candidates could not be looked for: without candidates, all of them would have departed.
    """

    __slots__ = ("_cycle", "_estimate", "_first_s", "_last_s")

    def __init__(self) -> None:
        self._estimate = MemoryEstimate()
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
        """Divide the unknown bytes of this cycle. The counts are of processes that the driver has a figure for."""
        total = float(min(max(0, unknown_bytes), MAX_BYTES))
        now_s = now_s if math.isfinite(now_s) else self._last_s
        self._cycle += 1
        poll = Poll(self._cycle, now_s, max(0.0, now_s - self._last_s), visible_arrivals, visible_departures)
        present = distinct(candidates)
        estimate = self._estimate
        if self._first_s is None:
            self._first_s = now_s
            estimate.unexplained_bytes, estimate.unexplained_s = total, now_s
            self._open(present.values(), now_s)
            estimate.assign_unexplained(present)
        else:
            departed = self._update_candidates(present, poll)
            estimate.update(total, poll, departed=departed)
        estimate.covariance.limit({id_: holding.held_bytes for id_, holding in estimate.holdings.items()})
        estimate.previous_bytes = total
        self._last_s = now_s
        return self._split(max(0, unknown_bytes))

    # -- candidates -----------------------------------------------------------------

    def _update_candidates(self, present: Mapping[CandidateId, Candidate], poll: Poll) -> bool:
        """Add and remove holdings; whether any candidate departed with what it held."""
        holdings = self._estimate.holdings
        owners = {holding.candidate.owner for holding in holdings.values()}
        arrived = [candidate for id_, candidate in present.items() if id_ not in holdings]
        gone = [id_ for id_ in holdings if id_ not in present]
        for id_, holding in holdings.items():
            holding.candidate = present.get(id_, holding.candidate)
            if holding.mapped_bytes is None:
                holding.mapped_bytes = holding.candidate.mapping_bytes
        self._open(arrived, poll.now_s, arriving_s=max(_WARM_UP_S, 4 * poll.since_s))
        departed = False
        for id_ in gone:
            # A grant ends as evidence when processes of its workload appear: they take over what it was estimated.
            if successors := [candidate.id for candidate in arrived if candidate.workload == id_]:
                self._estimate.transfer(id_, successors)
            else:
                departed = True
        for id_ in gone:
            self._estimate.close(id_)
        self._assign_unexplained(arrived, owners, poll)
        return departed

    def _assign_unexplained(self, arrived: list[Candidate], owners: set[CandidateId], poll: Poll) -> None:
        """Give unexplained bytes to arrivals that are older than these bytes and may hold them.

        Sources become ready one after the other, so a candidate may appear late. And candidates are not looked for
        before there is enough to explain.
        """
        estimate = self._estimate
        is_warm_up = self._first_s is not None and poll.now_s - self._first_s <= _WARM_UP_S
        was_too_little = not owners and estimate.unexplained_bytes < UNEXPLAINED_BYTES
        claimants = [
            candidate
            for candidate in arrived
            if candidate.owner not in owners
            and (is_warm_up or was_too_little or candidate.evidence is Evidence.GRANTED)
            and candidate.age_s > poll.now_s - estimate.unexplained_s
        ]
        if was_too_little and any(candidate.mapping_bytes for candidate in claimants):
            estimate.unexplained_bytes = 0.0  # then this is a change that their mappings explain
        estimate.assign_unexplained(candidate.id for candidate in claimants)

    def _open(self, candidates: Iterable[Candidate], now_s: float, *, arriving_s: float | None = None) -> None:
        """Add holdings of candidates; ``arriving_s`` is the age up to which a grant is an arrival.

        It is ``None`` at the first look. An older grant only became known to its source: nothing happened on the GPU.
        """
        holdings = self._estimate.holdings
        for candidate in candidates:
            arrives = arriving_s is not None and (
                candidate.evidence > Evidence.GRANTED or candidate.age_s <= arriving_s
            )
            mapped_bytes = 0 if arrives and candidate.mapping_bytes is not None else candidate.mapping_bytes
            is_fresh = arrives or candidate.age_s <= _JUST_BORN_S
            holdings[candidate.id] = Holding(candidate, now_s, is_fresh, mapped_bytes)
        self._estimate.holdings = {id_: holdings[id_] for id_ in sorted(holdings, key=sort_key)}

    # -- result ---------------------------------------------------------------------

    def _split(self, unknown_bytes: int) -> HiddenSplit:
        estimate = self._estimate
        ids = list(estimate.holdings)
        weights = whole_weights({place: estimate.holdings[id_].held_bytes for place, id_ in enumerate(ids)})
        parts = dict.fromkeys(weights, 0)
        if any(weights.values()):
            rest = unknown_bytes - min(unknown_bytes, round(estimate.context_bytes + estimate.unexplained_bytes))
            parts, _ = apportion(rest, weights)
        inferred = {id_: Inferred(parts[place], estimate.confidence([id_])) for place, id_ in enumerate(ids)}
        members: dict[CandidateId, list[CandidateId]] = {}
        for id_, holding in estimate.holdings.items():
            members.setdefault(holding.candidate.owner, []).append(id_)
        workloads = {
            owner: Inferred(sum(inferred[id_].bytes for id_ in members[owner]), estimate.confidence(members[owner]))
            for owner in sorted(members, key=sort_key)
        }
        return HiddenSplit(inferred, workloads, unknown_bytes - sum(parts.values()))

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything, as plain data. After a restart candidates are matched by id, and the gap is a change."""
        estimate = self._estimate
        places = {id_: place for place, id_ in enumerate(estimate.holdings)}
        return {
            "cycle": self._cycle,
            "first_s": self._first_s,
            "last_s": self._last_s,
            "run": estimate.rise_bytes,
            "before": estimate.previous_bytes,
            "stalled_s": estimate.stalled_s,
            "drift": estimate.drift,
            "contexts": estimate.context_bytes,
            "unexplained": estimate.unexplained_bytes,
            "unexplained_s": estimate.unexplained_s,
            "accounts": [holding.to_state() for holding in estimate.holdings.values()],
            "covariance": [[places[i], places[j], value] for i, j, value in estimate.covariance],
        }

    @classmethod
    def from_state(cls, data: Mapping[str, Any]) -> Self:
        """Restore what ``to_state`` returned; ValueError for anything else."""
        restored = cls()
        estimate = restored._estimate
        with restoring("hidden memory"):
            restored._cycle, restored._first_s = whole(data["cycle"]), optional(number, data["first_s"])
            restored._last_s, estimate.unexplained_s = number(data["last_s"]), number(data["unexplained_s"])
            estimate.context_bytes, estimate.unexplained_bytes = amount(data["contexts"]), amount(data["unexplained"])
            estimate.rise_bytes, estimate.previous_bytes = amount(data["run"]), amount(data["before"])
            estimate.stalled_s, estimate.drift = amount(data["stalled_s"]), amount(data["drift"])
            holdings = [Holding.from_state(state) for state in data["accounts"]]
            estimate.holdings = {holding.candidate.id: holding for holding in holdings}
            for i, j, value in data["covariance"]:
                one, other = holdings[whole(i)].candidate.id, holdings[whole(j)].candidate.id
                estimate.covariance.set(one, other, number(value))
        if len(estimate.holdings) < len(holdings) or list(estimate.holdings) != sorted(estimate.holdings, key=sort_key):
            raise ValueError("hidden memory: saved holdings are repeated or not sorted")
        return restored
