"""What workloads are called in a table, so that no two of them look like one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, TypeAlias

from otel_gpu.export.table_figures import UNKNOWN
from otel_gpu.model import HOST_WORKLOAD, WorkloadKey, WorkloadReport

HOST_ITSELF: Final = "the host itself"
"""Where somebody is who is in nobody's container, job or unit."""

_HASH, _SHORT = 64, 12
"""Digits of a container's id, and how many of them docker ps shows."""


NameKey: TypeAlias = tuple[WorkloadKey, int]
"""A workload under one of the names it had: a renamed workload is reported once per naming during the retention."""


def name_key(workload: WorkloadReport) -> NameKey:
    """The key of a workload in ``workload_names``."""
    return workload.ref.key, workload.naming


def workload_names(workloads: Sequence[WorkloadReport]) -> dict[NameKey, str]:
    """The name of each workload. Workloads that share a name get a suffix that tells them apart.

    That is the end of the pod's name, as much of it as it takes, as in ``eval (5w7lx)``; where pods do not differ the
    namespace too, and where there is none the id, or the kind of who is called by his id.
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
            suffixes = _told_apart(list(distinct.values()))
            shown = {key: f"{name} ({suffix})" for key, suffix in zip(distinct, suffixes, strict=True)}
        names |= {name_key(one): shown[one.ref.key] for one in group}
    return names


def origin(workload: WorkloadReport) -> str:
    """The pod it is of, or else the image it was made from."""
    if workload.ref == HOST_WORKLOAD:
        return HOST_ITSELF
    names = workload.names
    if names is None:
        return UNKNOWN
    return names.image or UNKNOWN if names.pod is None else _pod(workload)


def _name(workload: WorkloadReport) -> str:
    name = workload.display_name
    return _id(workload) if name == workload.ref.id else name


def _id(workload: WorkloadReport) -> str:
    name = workload.ref.unnamed
    return name[:_SHORT] if len(name) == _HASH else name


def _pod(workload: WorkloadReport) -> str:
    """``namespace/pod``, as far as it is known; nothing where there is no pod."""
    names = workload.names
    if names is None or names.pod is None:
        return ""
    return names.pod if names.namespace is None else f"{names.namespace}/{names.pod}"


def _told_apart(group: Sequence[WorkloadReport]) -> list[str]:
    pods = [_pod(workload) for workload in group]
    if len(set(pods)) < len(pods) or not all(pods):
        return [one.ref.kind.value if _id(one) == _name(one) else _id(one) for one in group]
    parts = [pod.rpartition("/")[2].split("-") for pod in pods]
    for count in range(1, max(map(len, parts)) + 1):
        tails = ["-".join(each[-count:]) for each in parts]
        if len(set(tails)) == len(tails):
            return tails
    return pods
