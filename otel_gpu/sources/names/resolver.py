"""Name resolution: merge what every name source knows into names and grants of this cycle.

Text that a workload controls never changes another workload's names or grants:

* What a source says counts only where its kind of source may say it (``authority``).
* Two sources that name the same container id differently contradict each other: the one of higher precedence counts.
* A nested container (a cgroup inside of an engine's container) can choose its own id. It takes names known by that id
  only if no source knows the outer container, and neither another workload on a GPU nor a process that an engine names
  has the same id.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from otel_gpu.model import (
    GpuReading,
    Grant,
    ProcessFacts,
    SourceState,
    WorkloadKey,
    WorkloadNames,
    WorkloadRef,
)
from otel_gpu.sources.base import NameRead, PodContainer, SpeakerKind, WorkloadInfo
from otel_gpu.sources.names.authority import admit, seen_cgroups
from otel_gpu.sources.names.grants import WorkloadClaim, grants_of

_NO_NAMES: Final = WorkloadNames()
"""Resolved for a workload that must lose the names it may have had."""

_ENGINE_ID: Final = re.compile(r"[0-9a-f]{64}")
"""A container id of an engine. LXC and nspawn use names, and no name source knows what is inside of those."""

_NO_POD_CONTAINER_IDS: Final = (
    "the kubelet granted GPUs to containers, but no source knows the ids of containers of pods: mount the socket of "
    "the container runtime (--cri-socket) or allow the Kubernetes API (--kubernetes-api always)"
)

_MAY_GRANT_TO_PODS: Final = frozenset({SpeakerKind.KUBERNETES, SpeakerKind.HOST})

_Problems: TypeAlias = defaultdict[int, list[str]]
"""What is wrong with the answer of each source, by the source's position."""

_Admitted: TypeAlias = Sequence[Mapping[WorkloadKey, WorkloadInfo]]
"""What counts of the answer of each source."""


class Resolution(NamedTuple):
    """Names and grants of one cycle.

    ``names`` has workloads on a GPU and workloads with a grant. ``pending`` are workloads that a source is still
    looking up. ``reads`` are the sources' answers, each with the problems found in it.
    """

    names: Mapping[WorkloadKey, WorkloadNames]
    pending: frozenset[WorkloadKey]
    grants: tuple[Grant, ...]
    reads: tuple[NameRead, ...]


class NameResolver:
    """Resolves names every cycle. Keeps the problems of the last cycle, so that each counts as one error."""

    def __init__(self) -> None:
        self._problems: _Problems = defaultdict(list)

    def resolve(
        self, reads: Sequence[NameRead], workloads: Collection[WorkloadRef], gpus: Sequence[GpuReading]
    ) -> Resolution:
        """Resolve what the sources said, in order of precedence, for the workloads on these GPUs."""
        problems: _Problems = defaultdict(list)
        seen = seen_cgroups(workloads, reads)
        nested = {key: ref for key, ref in _nested(workloads).items() if key not in seen}
        admitted = _admit(reads, seen | nested, problems)
        known = _merge(admitted, problems)
        _take_nested(known, nested)
        grants, unknown = grants_of(list(_claims(known, reads, problems)), gpus)
        for claim in unknown:
            _report_unknown(claim, admitted, reads, problems)
        before, self._problems = self._problems, problems
        return Resolution(
            _names(known, workloads, grants),
            _pending(reads, workloads),
            grants,
            tuple(_with_problems(read, problems[number], before[number]) for number, read in enumerate(reads)),
        )


def pids_by_workload(
    processes: Iterable[ProcessFacts], *, also: Iterable[WorkloadRef] = ()
) -> Mapping[WorkloadRef, Collection[int]]:
    """Pids of each workload that has one of these processes; none for those in ``also`` whose processes have ended."""
    found: dict[WorkloadRef, list[int]] = {ref: [] for ref in also}
    for facts in processes:
        found.setdefault(facts.workload, []).append(facts.key.pid)
    return found


# ---------------------------------------------------------------------------- names


def _admit(reads: Sequence[NameRead], seen: Mapping[WorkloadKey, WorkloadRef], problems: _Problems) -> _Admitted:
    """What counts of each answer. What a source may not say is reported."""
    admitted: list[dict[WorkloadKey, WorkloadInfo]] = []
    for number, read in enumerate(reads):
        statements = [admit(read.speaker, info, seen) for info in read.known.values()]
        problems[number] += [problem for _, problem in statements if problem is not None]
        admitted.append({info.ref.key: info for info, _ in statements if info is not None})
    return admitted


def _merge(admitted: _Admitted, problems: _Problems) -> dict[WorkloadKey, WorkloadInfo]:
    """Every workload that a source knows. The first of contradicting sources counts; the other one is reported."""
    merged: dict[WorkloadKey, WorkloadInfo] = {}
    for number, each in enumerate(admitted):
        for key, known in each.items():
            before = merged.get(key)
            if before is None:
                merged[key] = known
            elif _contradict(before, known):
                problems[number].append(
                    f"{known.ref.id[:12]} is {known.names.container!r} here and {before.names.container!r} in another "
                    "source"
                )
            else:
                merged[key] = _combined(before, known)
    return merged


def _contradict(one: WorkloadInfo, other: WorkloadInfo) -> bool:
    """Whether both have a container name, or both a pod, and these differ."""
    ours, theirs = one.names, other.names
    if ours.container != theirs.container and None not in (ours.container, theirs.container):
        return True
    return (ours.namespace, ours.pod) != (theirs.namespace, theirs.pod) and None not in (ours.pod, theirs.pod)


def _combined(first: WorkloadInfo, second: WorkloadInfo) -> WorkloadInfo:
    return WorkloadInfo(
        ref=first.ref,
        names=first.names.over(second.names),
        running=first.running or second.running,
        since_s=second.since_s if first.since_s is None else first.since_s,
        claims=tuple(dict.fromkeys((*first.claims, *second.claims))),
    )


def _take_nested(known: dict[WorkloadKey, WorkloadInfo], nested: Mapping[WorkloadKey, WorkloadRef]) -> None:
    """Move what is known by the id of a nested container to that container, unless a source knows the outer one.

    Containers of one engine are not nested in each other: where the outer one is known, the inner id is an impostor's.
    """
    for key, ref in nested.items():
        if key in known and (ref.kind, ref.outer_container_id) not in known:
            known[ref.key] = known.pop(key)._replace(ref=ref)


def _nested(workloads: Collection[WorkloadRef]) -> Mapping[WorkloadKey, WorkloadRef]:
    """Workloads nested in an engine's container, by kind and own id, if no other workload here has the same."""
    outside = {ref.key: ref for ref in workloads if ref.user_uid is None}.values()
    nested = [ref for ref in outside if ref.outer_container_id is not None]
    if not nested:
        return {}
    counts = Counter((ref.kind, ref.id) for ref in outside)
    return {
        (ref.kind, ref.id): ref
        for ref in nested
        if counts[ref.kind, ref.id] == 1 and _ENGINE_ID.fullmatch(ref.outer_container_id or "")
    }


def _names(
    known: Mapping[WorkloadKey, WorkloadInfo], workloads: Collection[WorkloadRef], grants: Iterable[Grant]
) -> dict[WorkloadKey, WorkloadNames]:
    wanted = dict.fromkeys((*(ref.key for ref in workloads), *(grant.workload.key for grant in grants)))
    found = {key: known[key].names for key in wanted if key in known}
    names = {key: its_names for key, its_names in found.items() if its_names != _NO_NAMES}
    return names | {ref.key: _NO_NAMES for ref in workloads if _is_impostor(ref, known)}


def _is_impostor(ref: WorkloadRef, known: Mapping[WorkloadKey, WorkloadInfo]) -> bool:
    """Whether a workload that can choose its id has that of another one, which a source knows."""
    return ref.outer_id is not None and ref.key not in known and (ref.kind, ref.id) in known


def _pending(reads: Iterable[NameRead], workloads: Iterable[WorkloadRef]) -> frozenset[WorkloadKey]:
    ids = frozenset().union(*(read.pending for read in reads))
    return frozenset(ref.key for ref in workloads if ref.id in ids)


# ---------------------------------------------------------------------------- claims


def _claims(
    known: Mapping[WorkloadKey, WorkloadInfo], reads: Sequence[NameRead], problems: _Problems
) -> Iterator[WorkloadClaim]:
    """Claims of running workloads: those that a source states itself, and the kubelet's by pod and container name."""
    for each in known.values():
        if each.running:
            yield from (WorkloadClaim(each.ref, claim, each.since_s) for claim in each.claims)
    if not any(read.pods for read in reads):
        return
    containers = _containers_of_pods(known.values())
    for number, read in enumerate(reads):
        if read.pods and not containers:
            problems[number].append(_NO_POD_CONTAINER_IDS)
        for container, claims in read.pods.items() if read.speaker.kind in _MAY_GRANT_TO_PODS else ():
            holder = containers.get(container)
            if holder is not None and holder.running:
                yield from (WorkloadClaim(holder.ref, claim, holder.since_s) for claim in claims)


def _containers_of_pods(known: Iterable[WorkloadInfo]) -> dict[PodContainer, WorkloadInfo]:
    """The current container of each name in a pod: a running one before an ended one, then the youngest."""
    found: dict[PodContainer, WorkloadInfo] = {}
    for each in known:
        names = each.names
        if names.namespace is None or names.pod is None or names.container is None:
            continue
        container = PodContainer(names.namespace, names.pod, names.container)
        before = found.get(container)
        if before is None or _recency(each) > _recency(before):
            found[container] = each
    return found


def _recency(known: WorkloadInfo) -> tuple[bool, float, str]:
    return known.running, known.since_s or 0.0, known.ref.id


# ---------------------------------------------------------------------------- problems


def _report_unknown(
    unknown: WorkloadClaim, admitted: _Admitted, reads: Sequence[NameRead], problems: _Problems
) -> None:
    """Report a claim to a device that this host does not have, on the source that states it."""
    for number, read in enumerate(reads):
        known = admitted[number].get(unknown.workload.key)
        if read.pods or (known is not None and unknown.claim in known.claims):
            name = known.names.container if known is not None else None
            problems[number].append(
                f"{name or unknown.workload.id[:12]} was granted {unknown.claim.device!r}, which is not a GPU of this "
                "host"
            )
            return


def _with_problems(read: NameRead, problems: Sequence[str], before: Collection[str]) -> NameRead:
    """A source's answer with its problems as the reason. Those that were there in the last cycle are no new errors."""
    if not problems:
        return read
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    reason = f"{problems[0]}{more}" if read.reason is None else f"{read.reason}; {problems[0]}{more}"
    state = SourceState.DEGRADED if read.state is SourceState.OK else read.state
    new = set(problems).difference(before)
    return replace(read, state=state, reason=reason, errors=read.errors + len(new))
