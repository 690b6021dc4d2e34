"""Names of workloads, unique in a table, and where they come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, TypeAlias

from otel_gpu.model import HOST_WORKLOAD, WorkloadKey, WorkloadReport
from otel_gpu.view.text import UNKNOWN

HOST_ITSELF: Final = "the host itself"
"""The origin of processes outside of containers, jobs and units."""

_KINDS: Final = {"slurm_job": "Slurm job", "systemd_unit": "systemd unit", "lxc": "LXC"}

_HASH, _SHORT = 64, 12
"""Digits of a container's id, and how many of them docker ps shows."""


NameKey: TypeAlias = tuple[WorkloadKey, int]
"""A workload under one of the names it had: a renamed workload is reported once per naming during the retention."""


def name_key(workload: WorkloadReport) -> NameKey:
    """The key of a workload in ``workload_names``."""
    return workload.ref.key, workload.naming


def workload_names(workloads: Sequence[WorkloadReport]) -> dict[NameKey, str]:
    """The name of each workload. Workloads that share a name get a suffix that distinguishes them.

    The suffix is the shortest end of the pod's name that differs, as in ``eval (5w7lx)``, or namespace and pod where
    only the namespaces differ. Without pods it is the id, or the kind where the name is the id.
    """
    alike: defaultdict[str, list[WorkloadReport]] = defaultdict(list)
    for workload in workloads:
        alike[_name(workload)].append(workload)
    names: dict[NameKey, str] = {}
    for name, group in alike.items():
        # Several namings of one workload share its name without a suffix: they are the same workload.
        distinct = {one.ref.key: one for one in group}
        shown = dict.fromkeys(distinct, name)
        if len(distinct) > 1:
            suffixes = _suffixes(list(distinct.values()))
            shown = {key: f"{name} ({suffix})" for key, suffix in zip(distinct, suffixes, strict=True)}
        names |= {name_key(one): shown[one.ref.key] for one in group}
    return names


def origin(workload: WorkloadReport) -> str:
    """The workload's pod, else its image."""
    if workload.ref == HOST_WORKLOAD:
        return HOST_ITSELF
    names = workload.names
    if names is None:
        return UNKNOWN
    return names.image or UNKNOWN if names.pod is None else _pod(workload)


def kind_and_origin(workload: WorkloadReport) -> str:
    """The workload's kind with its pod or image: ``container · team/pod-0``."""
    if workload.ref == HOST_WORKLOAD:
        return HOST_ITSELF
    kind, names = workload.ref.kind.value, workload.names
    where = "" if names is None else _pod(workload) or names.image or ""
    return " · ".join(filter(None, (_KINDS.get(kind, kind), where)))


def is_hash(workload: WorkloadReport) -> bool:
    """Whether the workload has no name but a container's id."""
    return workload.display_name == workload.ref.id and len(workload.ref.id) == _HASH


def _name(workload: WorkloadReport) -> str:
    name = workload.display_name
    return _id(workload) if name == workload.ref.id else name


def _id(workload: WorkloadReport) -> str:
    name = workload.ref.id_label
    return name[:_SHORT] if len(name) == _HASH else name


def _pod(workload: WorkloadReport) -> str:
    """``namespace/pod``, or the pod alone where the namespace is unknown; empty without a pod."""
    names = workload.names
    if names is None or names.pod is None:
        return ""
    return names.pod if names.namespace is None else f"{names.namespace}/{names.pod}"


def _suffixes(group: Sequence[WorkloadReport]) -> list[str]:
    pods = [_pod(workload) for workload in group]
    if len(set(pods)) < len(pods) or not all(pods):
        return [one.ref.kind.value if _id(one) == _name(one) else _id(one) for one in group]
    parts = [pod.rpartition("/")[2].split("-") for pod in pods]
    for count in range(1, max(map(len, parts)) + 1):
        tails = ["-".join(each[-count:]) for each in parts]
        if len(set(tails)) == len(tails):
            return tails
    return pods
