"""GPUs: their figures, bars of memory, and the workloads that hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from otel_gpu.model import GpuHealth, GpuReport, MemorySplit, MigReport
from otel_gpu.view import reasons
from otel_gpu.view.columns import GPU_COLUMNS, Device, cells
from otel_gpu.view.model import Bar, Cell, GpuFigure, GpuView, Holder, Plot, Segment, Slot
from otel_gpu.view.terminal import Tone, printable
from otel_gpu.view.text import (
    FREE,
    INFERRED,
    LEGEND,
    MEASURED,
    RESERVED,
    UNATTRIBUTED,
    memory_kinds,
    percent,
    size,
    watts,
    whole,
)
from otel_gpu.view.workloads import HeldPart

HEALTH_TONES: Final = {
    GpuHealth.OK: Tone.GOOD,
    GpuHealth.DEGRADED: Tone.WARN,
    GpuHealth.FAILED: Tone.BAD,
    GpuHealth.ASLEEP: Tone.WARN,
    GpuHealth.PAUSED: Tone.WARN,
}

_PLOTTED: Final = ("utilization", "power", "memory")
"""The keys of columns, in the order of ``Slot``."""

_NAMES: Final = {each.column.key: each.column.name for each in GPU_COLUMNS}

_REST: Final = {UNATTRIBUTED: reasons.UNATTRIBUTED_MEMORY, RESERVED: LEGEND[RESERVED], FREE: LEGEND[FREE]}


def gpu_view(
    gpu: GpuReport,
    window_s: float | None,
    held_parts: Sequence[HeldPart],
    colours: Mapping[str, int],
    history: Sequence[Slot | None],
) -> GpuView:
    """One GPU. ``held_parts`` are parts of this GPU, ``history`` its last hour."""
    reading, uuid, split = gpu.reading, printable(gpu.identity.uuid), gpu.memory
    limit_w = reading.power_limit_w
    limit = "" if limit_w is None else f"of {watts(limit_w)}"
    bars = (
        _bar(Device(gpu, None, window_s), held_parts, colours),
        *(_bar(Device(gpu, mig, window_s), _of_instance(mig, held_parts), colours) for mig in gpu.mig or ()),
    )
    own = {each.column.key: cell for each, cell in zip(GPU_COLUMNS, bars[0].cells, strict=True)}
    return GpuView(
        uuid=uuid,
        title=f"GPU {gpu.identity.index}",
        tone=HEALTH_TONES[reading.health],
        used="" if split is None else size(split.used_bytes),
        of_all="" if split is None else f"of {size(split.limit_bytes)} in use",
        bars=bars,
        holders=_holders(split, held_parts, colours),
        figures=(
            _figure("utilization", own, history, top=1, text=percent),
            _figure("power", own, history, top=limit_w, text=watts, limit=limit),
            _figure("memory", own, history, top=None if split is None else split.limit_bytes, text=size),
            GpuFigure("temperature"),
        ),
        reasons=tuple(reasons.gpu(gpu)),
    )


def _figure(
    column: str,
    own: Mapping[str, Cell],
    history: Sequence[Slot | None],
    *,
    top: float | None,
    text: Callable[[float | None], str],
    limit: str = "",
) -> GpuFigure:
    """A figure with the plot of its last hour. Without a ``top``, the highest sample is at the top."""
    place = _PLOTTED.index(column)
    summaries = [summary for slot in history if slot is not None and (summary := slot[place]) is not None]
    label = f"{_NAMES[column]} in the last hour: "
    if not summaries:
        absent = "unknown" if history else "no data yet"
        return GpuFigure(column, limit, Plot(place, top or 1, label + absent, f"last hour: {absent}"))
    lowest, highest = min(low for _, low, _ in summaries), max(high for _, _, high in summaries)
    now = own[column].value
    assert not isinstance(now, str)  # a column of numbers
    label += f"lowest {text(lowest)}, highest {text(highest)}, now {text(now)}"
    return GpuFigure(column, limit, Plot(place, top or max(highest, 0) or 1, label, "last hour"))


# ---------------------------------------------------------------------------- memory


def _of_instance(mig: MigReport, held_parts: Sequence[HeldPart]) -> list[HeldPart]:
    return [each for each in held_parts if each.part.mig_uuid == mig.uuid]


def _bar(device: Device, held_parts: Sequence[HeldPart], colours: Mapping[str, int]) -> Bar:
    gpu, instance, _ = device
    uuid = printable(gpu.identity.uuid if instance is None else instance.uuid)
    profile = None if instance is None else printable(instance.profile or "MIG")
    split = gpu.memory if instance is None else instance.memory
    figures = cells(GPU_COLUMNS, device)
    if split is None:
        return Bar(uuid, profile, figures, (), "Memory: unknown")
    kinds = memory_kinds(split)
    segments: list[Segment] = []
    for kind in (MEASURED, INFERRED):
        segments += _held_segments(kind, kinds[kind], held_parts, colours)
    segments += [
        Segment(kind, kind, kinds[kind], None, f"{size(kinds[kind])}: {reason}") for kind, reason in _REST.items()
    ]
    words = [
        f"{each.name} {size(bytes_)} {kind}"
        for kind in (MEASURED, INFERRED)
        for each, bytes_ in _held(kind, held_parts)
    ]
    words += [f"{size(kinds[kind])} {LEGEND[kind]}" for kind in _REST if kinds[kind]]
    return Bar(
        uuid,
        profile,
        figures,
        tuple(segment for segment in segments if segment.bytes > 0),
        f"Memory of {size(split.limit_bytes)}: {', '.join(words)}",
    )


def _held_segments(
    kind: str, total_bytes: int, held_parts: Sequence[HeldPart], colours: Mapping[str, int]
) -> list[Segment]:
    """A segment per holder. They sum to ``total_bytes``, in which memory that the lists count twice counts once."""
    held = _held(kind, held_parts)
    if not held:
        return [Segment(kind, kind, total_bytes, None, f"{size(total_bytes)}: {kind}")]
    claimed = sum(bytes_ for _, bytes_ in held)
    drawn = whole([bytes_ * total_bytes for _, bytes_ in held], claimed)
    return [
        Segment(
            f"{kind} {each.key} {each.part.mig_uuid}",
            kind,
            part,
            colours.get(each.key),
            reasons.holding(each.name, kind, bytes_, each.part.confidence),
        )
        for (each, bytes_), part in zip(held, drawn, strict=True)
    ]


def _held(kind: str, held_parts: Sequence[HeldPart]) -> list[tuple[HeldPart, int]]:
    """The holders of one kind of memory with their bytes, the largest first. A workload may hold several instances."""
    held = [
        (each, (each.part.measured_bytes if kind == MEASURED else each.part.inferred_bytes) or 0) for each in held_parts
    ]
    return sorted(((each, bytes_) for each, bytes_ in held if bytes_ > 0), key=lambda pair: (-pair[1], pair[0].key))


def _holders(
    split: MemorySplit | None, held_parts: Sequence[HeldPart], colours: Mapping[str, int]
) -> tuple[Holder, ...]:
    """What the GPU's bar shows, in words: nothing needs a pointer to be read."""
    holders = []
    for kind in (MEASURED, INFERRED):
        for each, bytes_ in _held(kind, held_parts):
            sure = each.part.confidence
            inferred = "inferred" if sure is None else f"inferred, {percent(sure)}"
            cell = Cell(size(bytes_), bytes_, reasons.holding(each.name, kind, bytes_, sure))
            key = f"{kind} {each.key} {each.part.mig_uuid}"
            holders.append(
                Holder(key, kind, colours.get(each.key), each.name, cell, "" if kind == MEASURED else inferred)
            )
    if split is not None and split.unattributed_bytes:
        bytes_ = split.unattributed_bytes
        cell = Cell(size(bytes_), bytes_, reasons.UNATTRIBUTED_MEMORY)
        holders.append(Holder(UNATTRIBUTED, UNATTRIBUTED, None, UNATTRIBUTED, cell, ""))
    return tuple(holders)
