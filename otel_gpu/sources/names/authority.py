"""Which source's text may identify a workload. Pure: every rule about trust in names and grants is here.

A source states what it knows of an id. Whether that counts depends on what kind of program it asks (``Speaker``) and on
the cgroup of the workload, which the kernel shows and only root, or the user whose slice it is in, can choose:

* An engine names containers whose cgroup shows its own runtime, or none. Below ``kubepods`` its runtime must be shown:
  without one, only the container runtime (CRI), the kubelet and the Kubernetes API name.
* Root's engine gives the names of a pod from labels only to a container whose cgroup is that pod's (cri-dockerd).
* A user's own engine names the containers in a cgroup below that user's slice, never a pod or a namespace. Equal ids of
  another user, or outside, are other workloads.
* The sources of Kubernetes name containers of pods. Outside of pods the runtime must not be another one.
* Slurm's source names Slurm jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from otel_gpu.bounded_io import one_line
from otel_gpu.model import WorkloadKey, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import NameRead, Speaker, SpeakerKind, WorkloadInfo

_SHORT: Final = 12


class Statement(NamedTuple):
    """What counts of a source's statement about a workload, ``None`` if nothing, and what is wrong with it."""

    info: WorkloadInfo | None
    problem: str | None = None


def seen_cgroups(workloads: Iterable[WorkloadRef], reads: Iterable[NameRead]) -> dict[WorkloadKey, WorkloadRef]:
    """Workloads as their cgroups show them: those on GPUs, and those whose process a source named.

    A user's engine may name the process of any container. Only those of its user count.
    """
    seen: dict[WorkloadKey, WorkloadRef] = {}
    for read in reads:
        places = [info.place for info in read.known.values() if info.place is not None]
        seen |= {place.key: place for place in places if read.speaker.uid in (None, place.user_uid)}
    return seen | {ref.key: ref for ref in workloads}


def admit(speaker: Speaker, info: WorkloadInfo, seen: Mapping[WorkloadKey, WorkloadRef]) -> Statement:
    """What counts of a statement, about the workload that the speaker may name. ``seen`` is what cgroups show."""
    match speaker.kind:
        case SpeakerKind.HOST:
            return Statement(info)
        case SpeakerKind.SLURM:
            return Statement(info if info.ref.kind is WorkloadKind.SLURM_JOB else None)
        case SpeakerKind.KUBERNETES:
            return _of_kubernetes(info, seen.get(info.ref.key))
        case SpeakerKind.ENGINE if speaker.uid is None:
            return _of_root_engine(speaker, info, seen)
    return _of_user_engine(speaker, info, seen)


def _of_kubernetes(info: WorkloadInfo, cgroup: WorkloadRef | None) -> Statement:
    stated = info.names.pod_uid or info.ref.pod_uid
    if cgroup is None or (cgroup.pod_uid is not None and stated in (None, cgroup.pod_uid)):
        return Statement(info)
    if cgroup.pod_uid is not None:
        return _refused(info, f"its cgroup is of pod {cgroup.pod_uid}, not of {one_line(str(stated))}")
    if None not in (cgroup.runtime, info.names.runtime) and cgroup.runtime != info.names.runtime:
        return _refused(info, f"its cgroup is of {cgroup.runtime}, not of {one_line(str(info.names.runtime))}")
    return Statement(info)


def _of_root_engine(speaker: Speaker, info: WorkloadInfo, seen: Mapping[WorkloadKey, WorkloadRef]) -> Statement:
    ref = info.ref if info.place is None else replace(info.place, runtime=info.place.runtime or info.ref.runtime)
    cgroup = seen.get(ref.key)
    if cgroup is None:  # a container that has ended, or processes that the agent does not see
        return Statement(info._replace(labelled=None))
    if (problem := _other_runtime(speaker, cgroup)) is not None:
        return _refused(info, problem)
    if cgroup.pod_uid is not None and cgroup.runtime is None:
        return Statement(None)
    own = info._replace(ref=replace(ref, pod_uid=cgroup.pod_uid), labelled=None)
    pod = info.labelled
    if pod is None:
        return Statement(own)
    if cgroup.pod_uid is not None and pod.pod_uid == cgroup.pod_uid:
        return Statement(own._replace(names=pod.over(info.names)))
    actual = "no pod's" if cgroup.pod_uid is None else f"that of pod {cgroup.pod_uid}"
    return Statement(own, _about(info, f"its labels name {_pod(pod)}, but its cgroup is {actual}; they are ignored"))


def _of_user_engine(speaker: Speaker, info: WorkloadInfo, seen: Mapping[WorkloadKey, WorkloadRef]) -> Statement:
    ref = replace(info.ref, pod_uid=None, outer_container_id=None, user_uid=speaker.uid)
    cgroup = seen.get(ref.key)
    if cgroup is None:
        if not info.running:
            return Statement(None)
        return _refused(info, f"no process of it is in a cgroup of user {speaker.uid}, whose engine this is")
    if (problem := _other_runtime(speaker, cgroup)) is not None:
        return _refused(info, problem)
    own = info._replace(ref=ref, labelled=None)
    if info.labelled is None:
        return Statement(own)
    ignored = f"its labels name {_pod(info.labelled)}, but it is of user {speaker.uid}'s engine; they are ignored"
    return Statement(own, _about(info, ignored))


def _other_runtime(speaker: Speaker, cgroup: WorkloadRef) -> str | None:
    if cgroup.runtime is None or cgroup.runtime in speaker.runtimes:
        return None
    return f"its cgroup is of {cgroup.runtime}, which this source is not"


def _refused(info: WorkloadInfo, problem: str) -> Statement:
    return Statement(None, _about(info, f"{problem}; what this source says of it is ignored"))


def _about(info: WorkloadInfo, problem: str) -> str:
    return f"container {info.ref.id[:_SHORT]}: {problem}"


def _pod(names: WorkloadNames) -> str:
    return f"pod {one_line('/'.join(filter(None, (names.namespace, names.pod or names.pod_uid))))!r}"
