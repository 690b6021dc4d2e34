"""Figures as people read them on a terminal, in the page's words. A dash means "not known", which is not zero."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Final

from otel_gpu.export.text import cells
from otel_gpu.model import GpuReport, MemorySplit, MethodEnergy

UNKNOWN: Final = "-"
MIB: Final = 1 << 20
_GIB: Final = 1 << 30

MEASURED, INFERRED, UNATTRIBUTED, RESERVED, FREE = "█", "▒", "░", ":", "·"
LEGEND: Final = {
    MEASURED: "measured",
    INFERRED: "inferred",
    UNATTRIBUTED: "unattributed",
    RESERVED: "the driver's own",
    FREE: "free",
}
"""How memory is drawn: the denser, the better it is known who holds it."""

MARKS: Final = {"≈": "estimated", "~": "inferred", UNKNOWN: "not known, which is not zero"}

_IN_ASCII: Final = str.maketrans(
    {MEASURED: "#", INFERRED: "%", UNATTRIBUTED: "?", FREE: ".", "≈": "*", "…": ">", "└": "`", "°": "'"}
    | {"↓": "v", "↑": "^"}
    | dict(zip("▁▂▃▄▅▆▇", "_.-=+*o", strict=True))
)


def size(bytes_: float | None) -> str:
    """Bytes in binary units."""
    if bytes_ is None:
        return UNKNOWN
    return f"{bytes_ / _GIB:.1f} GiB" if abs(bytes_) >= _GIB else f"{bytes_ / MIB:.0f} MiB"


def out_of(part_bytes: int, all_bytes: int) -> str:
    """Bytes of others, in the unit of these."""
    part, (whole_, unit) = size(part_bytes), size(all_bytes).split(" ")
    return f"{part.removesuffix(f' {unit}')}/{whole_} {unit}"


def percent(ratio: float | None) -> str:
    """A ratio of 0 to 1 in percent."""
    return UNKNOWN if ratio is None else f"{ratio * 100:.0f} %"


def watts(power_w: float | None) -> str:
    """Power in whole watts."""
    return UNKNOWN if power_w is None else f"{power_w:.0f} W"


def celsius(temperature_c: float | None) -> str:
    """A temperature in whole degrees."""
    return UNKNOWN if temperature_c is None else f"{temperature_c:.0f} °C"


def joules(energy_mj: float | None) -> str:
    """Millijoules in the largest unit of joules that leaves a figure before the point."""
    if energy_mj is None:
        return UNKNOWN
    energy_j = energy_mj / 1000
    for unit, length in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if energy_j >= length:
            return f"{energy_j / length:.{0 if energy_j >= 100 * length else 1}f} {unit}"
    return f"{energy_j:.0f} J"


def span(seconds: float | None) -> str:
    """A span of time in its largest unit."""
    if seconds is None:
        return UNKNOWN
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def money(amount: float | None, currency: str) -> str:
    """An amount of a currency; what is less than one with the digits that matter."""
    if amount is None:
        return UNKNOWN
    return f"{amount:.{2 if amount == 0 or amount >= 1 else 4}f} {currency}"


def signed(text: str, energy: MethodEnergy) -> str:
    """A figure of energy or power with the mark of how it was found; none before what was measured or is not known."""
    if energy.inferred_mj:
        return f"~ {text}"
    return f"≈ {text}" if energy.estimated_mj else text


def power_w(energy: MethodEnergy, window_s: float | None) -> float | None:
    """The mean power of a window."""
    energy_mj = energy.total_mj
    return energy_mj / 1000 / window_s if energy_mj is not None and window_s else None


def gpu_power_w(gpu: GpuReport, window_s: float | None) -> float | None:
    """The mean of the window, of which the workloads' are parts; where no energy is counted, what is drawn now."""
    if gpu.energy is None or not window_s:
        return gpu.reading.power_w
    return gpu.energy.delta_mj / 1000 / window_s


def state_words(state: str | None, idle_s: float | None) -> str:
    """What somebody does with a GPU; for how long, where that is known of who is idle."""
    if state is None:
        return UNKNOWN
    return f"idle {span(idle_s)}" if state == "idle" and idle_s is not None else state


def state_because(state: str, reason: str | None) -> str:
    """A state and its reason, without saying twice what the reason begins with: ``paused at 10:00 until resumed``."""
    if not reason or reason.startswith(f"{state} "):
        return reason or state
    return f"{state}: {reason}"


def model(name: str) -> str:
    """A GPU's name without its vendor: they are all of one."""
    return name.removeprefix("NVIDIA ")


def utc(unix_s: float, form: str) -> str:
    """A time of the world's clock; a dash where no calendar has it."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


# ---------------------------------------------------------------------------- memory


def used_bytes(split: MemorySplit) -> int:
    """All but what is free and the driver's own."""
    return split.limit_bytes - split.free_bytes - (split.reserved_bytes or 0)


def bar_parts(split: MemorySplit, width: int) -> list[tuple[str, int]]:
    """The marks of a bar of ``width`` cells, each with how many there are of it.

    Whatever is used has a cell, however little it is, at the cost of what has most.
    """
    used = used_bytes(split)
    parts = {
        MEASURED: used - split.unattributed_bytes - split.inferred_bytes,
        INFERRED: split.inferred_bytes,
        UNATTRIBUTED: split.unattributed_bytes,
        RESERVED: split.reserved_bytes or 0,
        FREE: split.free_bytes,
    }
    counts = dict(zip(parts, whole([part * width for part in parts.values()], split.limit_bytes), strict=True))
    for mark in (MEASURED, INFERRED, UNATTRIBUTED):
        most = max(counts, key=counts.__getitem__)
        if parts[mark] > 0 and counts[mark] == 0 and counts[most] > 1:
            counts[mark], counts[most] = 1, counts[most] - 1
    return [(mark, count) for mark, count in counts.items() if count > 0]


def bar(split: MemorySplit | None, width: int) -> str:
    """Memory as a bar of ``width`` cells."""
    if split is None or split.limit_bytes <= 0:
        return UNKNOWN
    return "".join(mark * count for mark, count in bar_parts(split, width))


def whole(parts: Sequence[int], unit: int) -> list[int]:
    """Parts in whole units that add up as shown: their running sum is rounded, not each of them."""
    ends = [0, *((2 * end + unit) // (2 * unit) for end in accumulate(parts))]
    return [end - start for start, end in pairwise(ends)]


# ---------------------------------------------------------------------------- terminals that know no more


def in_ascii(text: str) -> str:
    """The text for a terminal that shows ASCII only: our own marks by others, the rest by ``?`` in as many cells."""
    if text.isascii():
        return text
    translated = text.translate(_IN_ASCII)
    return "".join(character if character.isascii() else "?" * cells(character) for character in translated)


def fit_for(encoding: str | None, text: str) -> str:
    """The text as a terminal or pipe of this encoding shows it."""
    return text if (encoding or "utf-8").lower().replace("-", "").replace("_", "") == "utf8" else in_ascii(text)
