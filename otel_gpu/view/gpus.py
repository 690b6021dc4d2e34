"""GPUs: their figures, bars of memory, and the workloads that hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from otel_gpu.model import GpuHealth, GpuReport, MemorySplit
from otel_gpu.view import reasons
from otel_gpu.view.model import Bar, Cell, GpuFigure, GpuView, Holder, Plot, Segment, Slot, Summary
from otel_gpu.view.terminal import Tone, printable
from otel_gpu.view.text import (
    FREE,
    INFERRED,
    LEGEND,
    MEASURED,
    RESERVED,
    UNATTRIBUTED,
    UNKNOWN,
    celsius,
    gpu_power_w,
    memory_kinds,
    model,
    out_of,
    percent,
    size,
    state_with_reason,
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

_PLOTTED: Final = ("Utilisation", "Power", "Memory")
"""In the order of ``Slot``."""

_REST: Final = {UNATTRIBUTED: reasons.UNATTRIBUTED_MEMORY, RESERVED: LEGEND[RESERVED], FREE: LEGEND[FREE]}


def gpu_view(
    gpu: GpuReport,
    window_s: float | None,
    held_parts: Sequence[HeldPart],
    colours: Mapping[str, int],
    history: Sequence[Slot | None],
) -> GpuView:
    """One GPU. ``held_parts`` are those of this GPU, ``history`` its last hour."""
    reading, uuid = gpu.reading, printable(gpu.identity.uuid)
    power_w, split, limit_w = gpu_power_w(gpu, window_s), gpu.memory, reading.power_limit_w
    used = None if split is None else split.used_bytes
    limit = None if split is None else split.limit_bytes
    utilization = Cell(percent(reading.gpu_ratio), reading.gpu_ratio, reasons.FROM_DRIVER)
    power = Cell(watts(power_w), power_w, reasons.gpu_power(gpu))
    memory = Cell(size(used), used, reasons.USED_MEMORY)
    temperature = Cell(celsius(reading.temperature_c), reading.temperature_c, reasons.FROM_DRIVER)
    return GpuView(
        uuid=uuid,
        number=gpu.identity.index,
        name=printable(model(gpu.identity.name)),
        health=reading.health.value,
        tone=HEALTH_TONES[reading.health],
        state=printable(state_with_reason(reading.health.value, reading.reason)),
        used=memory,
        limit=Cell(size(limit), limit),
        bars=(_bar(uuid, None, split, held_parts, colours), *_instance_bars(gpu, held_parts, colours)),
        holders=_holders(split, held_parts, colours),
        utilization=_figure("Utilisation", utilization, _of(history, 0), top=1, text=percent),
        power=_figure(
            "Power",
            power,
            _of(history, 1),
            top=limit_w,
            text=watts,
            limit="" if limit_w is None else f"of {watts(limit_w)}",
        ),
        memory=_figure("Memory", memory, _of(history, 2), top=limit, text=size),
        temperature=GpuFigure("Temperature", temperature),
        reasons=tuple(reasons.gpu(gpu)),
    )


def _of(history: Sequence[Slot | None], figure: int) -> list[Summary | None]:
    return [None if slot is None else slot[figure] for slot in history]


def _figure(
    name: str,
    cell: Cell,
    history: Sequence[Summary | None],
    *,
    top: float | None,
    text: Callable[[float | None], str],
    limit: str = "",
) -> GpuFigure:
    """A figure with the plot of its last hour. Without a ``top``, the highest sample is at the top."""
    place = _PLOTTED.index(name)
    summaries = [summary for summary in history if summary is not None]
    label = f"{name} in the last hour: "
    if not summaries:
        absent = "unknown" if history else "no data yet"
        return GpuFigure(name, cell, limit, Plot(place, top or 1, label + absent, f"last hour: {absent}"))
    highest = max(high for _, _, high in summaries)
    label += f"lowest {text(min(low for _, low, _ in summaries))}, highest {text(highest)}, now {cell.text}"
    return GpuFigure(name, cell, limit, Plot(place, top or max(highest, 0) or 1, label, "last hour"))


# ---------------------------------------------------------------------------- memory


def _instance_bars(gpu: GpuReport, held_parts: Sequence[HeldPart], colours: Mapping[str, int]) -> list[Bar]:
    return [
        _bar(
            printable(mig.uuid),
            printable(mig.profile or "MIG"),
            mig.memory,
            [each for each in held_parts if each.part.mig_uuid == mig.uuid],
            colours,
        )
        for mig in gpu.mig or ()
    ]


def _bar(
    uuid: str,
    profile: str | None,
    split: MemorySplit | None,
    held_parts: Sequence[HeldPart],
    colours: Mapping[str, int],
) -> Bar:
    if split is None:
        return Bar(uuid, profile, UNKNOWN, (), "Memory: unknown")
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
        out_of(split.used_bytes, split.limit_bytes),
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
