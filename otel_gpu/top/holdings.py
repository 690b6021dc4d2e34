"""Who holds how much of each GPU and instance, by the keys of workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from otel_gpu.top.plain import Plain, whole_number


@dataclass(frozen=True, slots=True)
class Holding:
    """What a workload, by its key, holds of one GPU or instance."""

    key: str
    measured_bytes: int
    inferred_bytes: int


Held: TypeAlias = Mapping[tuple[str, str | None], Sequence[Holding]]
"""Of a GPU by its UUID and ``None``, of an instance by that and its own; who holds most comes first."""


def holdings_of(document: Plain, beside: Plain) -> Held:
    """What an agent's two objects say of that."""
    found: dict[tuple[str, str | None], list[Holding]] = {}
    for workload, more in zip(document.each("workloads"), beside.each("workloads"), strict=True):
        key = workload_key(workload.text("kind"), workload.text("id"), more)
        for part in workload.each("gpus"):
            memory = part.inner("memory")
            held = Holding(key, memory.whole("measured") or 0, memory.whole("inferred") or 0)
            if held.measured_bytes or held.inferred_bytes:
                for place in {None, part.optional("mig")}:
                    found.setdefault((part.text("uuid"), place), []).append(held)
    return {
        place: sorted(held, key=lambda each: (-(each.measured_bytes + each.inferred_bytes), each.key))
        for place, held in found.items()
    }


def workload_key(kind: str, id_: str, beside: Plain) -> str:
    """What a workload is known by: renamed it is another, and inside of a container another than one outside."""
    return f"{kind} {whole_number(beside.known('naming'))} {beside.optional('outer') or ''} {id_}"
