"""Figures as text. A dash is unknown, which is not zero."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from otel_gpu.model import GpuReport, MemorySplit, MethodEnergy

UNKNOWN: Final = "–"
MIB: Final = 1 << 20
_GIB: Final = 1 << 30

SIMULATED_HOST: Final = "SIMULATED HOST: no figure here is from a real GPU"

MEASURED, INFERRED, UNATTRIBUTED, RESERVED, FREE = "measured", "inferred", "unattributed", "reserved", "free"
LEGEND: Final = {
    MEASURED: "measured",
    INFERRED: "inferred",
    UNATTRIBUTED: "unattributed",
    RESERVED: "reserved by the driver",
    FREE: "free",
}
"""Kinds of memory in a bar, and their names."""

BAR_MARKS: Final = {MEASURED: "█", INFERRED: "▒", UNATTRIBUTED: "░", RESERVED: ":", FREE: "·"}
"""Kinds of memory in a bar of text: the denser, the better its holder is known."""

MARKS: Final = {"≈": "estimated", "~": "inferred", UNKNOWN: "unknown, which is not zero"}

KEY: Final = (
    f"{', '.join(f'{mark} is {meaning}' for mark, meaning in MARKS.items())}.",
    "SM, power and state are from the last sample; energy, idle time and cost are totals so far.",
    "Idle time on several GPUs is summed (GPU-m).",
)
"""What the marks and figures of workloads mean."""

INFERRED_MEANING: Final = "INFERRED is memory that the driver does not list and evidence explains, with the confidence"

NO_PROBLEMS: Final = "no problems"
EVERYTHING_READ: Final = "No problems: every source could be read."
READING: Final = "reading the GPUs…"
CONNECTING: Final = "connecting to the agent at {address}…"


class Words(NamedTuple):
    """Texts around the figures. A name in braces is filled in where the view is drawn, with ``filled``."""

    obtained: str
    all_workloads: str
    found_workloads: str
    shown_workloads: str
    further_workloads: str
    ascending: str
    descending: str
    processes_of: str
    as_of: str
    paused: str
    lost: str
    lost_title: str
    no_data: str
    no_connection: str
    back: str


def words(workloads: int) -> Words:
    """The texts around the figures of this number of workloads."""
    all_ = plural(workloads, "workload")
    return Words(
        obtained="How these figures were obtained",
        all_workloads=all_,
        found_workloads=f"{{found}} of {all_}",
        shown_workloads="{shown} workloads are shown",
        further_workloads="Show {more} more of {found}",
        ascending="Sorted by {column}, ascending",
        descending="Sorted by {column}, descending",
        processes_of="Processes of {workload}",
        as_of="as of {time}",
        paused="paused, as of {time}",
        lost="Lost the agent at {since}: {reason}. The figures are old, from {time}. Retrying…",
        lost_title="(lost) {title}",
        no_data="it sends no data",
        no_connection="no connection",
        back="The agent is back.",
    )


def filled(template: str, **values: object) -> str:
    """The template with these values for the names in braces. Any text is a template: an agent may send it."""
    return re.sub(r"\{(\w+)\}", lambda name: str(values.get(name[1], name[0])), template)


def power_meaning(window_s: float) -> str:
    """What the power of a table is."""
    return f"POWER is the mean of the last {window_s:.1f} s"


def more_lines(count: int) -> str:
    """The last line of a table that was cut."""
    return f"… {count} more"


def size(bytes_: float | None) -> str:
    """Bytes in binary units."""
    if bytes_ is None:
        return UNKNOWN
    return f"{bytes_ / _GIB:.1f} GiB" if abs(bytes_) >= _GIB else f"{bytes_ / MIB:.0f} MiB"


def out_of(part_bytes: int, all_bytes: int) -> str:
    """A part of an amount of bytes, such as ``1.5/8.0 GiB``; the unit is printed once where both have the same."""
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
    """Millijoules in the largest unit of joules that gives a number of at least 1."""
    if energy_mj is None:
        return UNKNOWN
    energy_j = energy_mj / 1000
    for unit, length in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if energy_j >= length:
            return f"{energy_j / length:.{0 if energy_j >= 100 * length else 1}f} {unit}"
    return f"{energy_j:.0f} J"


def kilowatt_hours(energy_mj: float) -> str:
    """Millijoules in kWh or, below 1 kWh, in Wh."""
    energy_wh = energy_mj / 3.6e6
    value, unit = (energy_wh / 1000, "kWh") if energy_wh >= 1000 else (energy_wh, "Wh")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.2g} {unit}" if value < 0.1 else f"{value:.3g} {unit}"


def span(seconds: float | None) -> str:
    """A span of time in its largest unit."""
    if seconds is None:
        return UNKNOWN
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def gpu_span(seconds: float | None, places: int) -> str:
    """A span of time summed over GPUs or MIG instances (``places``); over several it is GPU time: ``3 GPU-h``."""
    text = span(seconds)
    return text.replace(" ", " GPU-") if seconds and places > 1 else text


def plural(count: int, noun: str) -> str:
    """A number of things: ``1 GPU``, ``2 GPUs``, ``2 processes``."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{'' if count == 1 else ending}"


def money(amount: float | None, currency: str) -> str:
    """An amount of a currency: 2 decimals, 4 for amounts below 1."""
    if amount is None:
        return UNKNOWN
    return f"{amount:.{2 if amount == 0 or amount >= 1 else 4}f} {currency}"


def signed(text: str, energy: MethodEnergy) -> str:
    """A figure of energy or power with the mark of its method; no mark where it was measured or is unknown."""
    if energy.inferred_mj:
        return f"~ {text}"
    return f"≈ {text}" if energy.estimated_mj else text


def power_w(energy: MethodEnergy, window_s: float | None) -> float | None:
    """The mean power of a window in W."""
    energy_mj = energy.total_mj
    return energy_mj / 1000 / window_s if energy_mj is not None and window_s else None


def gpu_power_w(gpu: GpuReport, window_s: float | None) -> float | None:
    """A GPU's mean power of the window in W, the sum over its workloads; its present power where energy is unknown."""
    if gpu.energy is None or not window_s:
        return gpu.reading.power_w
    return gpu.energy.delta_mj / 1000 / window_s


def state_text(state: str | None, idle_s: float | None, *, active: bool = True) -> str:
    """State on a GPU, with the idle time where it is known; ``ended`` if it is no longer active."""
    if not active:
        return "ended"
    if state is None:
        return UNKNOWN
    return f"idle {span(idle_s)}" if state == "idle" and idle_s is not None else state


def simulation_warning(reason: str) -> str:
    """The warning that the host is simulated, and why."""
    return f"{SIMULATED_HOST} ({reason})"


def state_with_reason(state: str, reason: str | None) -> str:
    """A state and its reason. A reason that begins with the state is used alone: ``paused at 10:00 until resumed``."""
    if not reason or reason.startswith(f"{state} "):
        return reason or state
    return f"{state}: {reason}"


def model(name: str) -> str:
    """A GPU's name without the vendor, which is the same for all GPUs."""
    return name.removeprefix("NVIDIA ")


def utc(unix_s: float, form: str) -> str:
    """Unix time in UTC; a dash where it is outside the calendar."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


# ---------------------------------------------------------------------------- memory


def memory_kinds(split: MemorySplit) -> dict[str, int]:
    """Bytes by kind, each byte once: their sum is the limit."""
    return {
        MEASURED: split.measured_bytes - split.overcount_bytes,
        INFERRED: split.inferred_bytes,
        UNATTRIBUTED: split.unattributed_bytes,
        RESERVED: split.reserved_bytes or 0,
        FREE: split.free_bytes,
    }


def bar_cells(kinds: Mapping[str, int], width: int) -> dict[str, int]:
    """The cells of each kind in a bar of ``width`` cells.

    Memory in use gets at least one cell per kind, taken from the kind with the most cells.
    """
    counts = dict(zip(kinds, whole([part * width for part in kinds.values()], sum(kinds.values())), strict=True))
    for kind in (MEASURED, INFERRED, UNATTRIBUTED):
        most = max(counts, key=counts.__getitem__)
        if kinds.get(kind, 0) > 0 and counts[kind] == 0 and counts[most] > 1:
            counts[kind], counts[most] = 1, counts[most] - 1
    return counts


def bar(kinds: Mapping[str, int], width: int) -> str:
    """Memory by kind as a bar of ``width`` cells; unknown without memory."""
    if not any(kinds.values()):
        return UNKNOWN
    return "".join(BAR_MARKS[kind] * count for kind, count in bar_cells(kinds, width).items())


def whole(parts: Sequence[int], unit: int) -> list[int]:
    """Parts in whole units whose sum is the rounded total: the running sum is rounded, not each part."""
    ends = [0, *((2 * end + unit) // (2 * unit) for end in accumulate(parts))]
    return [end - start for start, end in pairwise(ends)]
