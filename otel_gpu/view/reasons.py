"""How each figure was obtained, in words."""

from __future__ import annotations

from typing import Final

from otel_gpu.model import EnergyBasis, GpuReport, MemorySplit, MethodEnergy
from otel_gpu.view.terminal import printable
from otel_gpu.view.text import joules, kilowatt_hours, money, percent, size, span, utc, watts

UNATTRIBUTED_MEMORY: Final = "in use, no evidence for any workload"
USED_MEMORY: Final = "all memory that is neither free nor reserved by the driver"
FROM_DRIVER: Final = "as the driver reports it"

_STATES: Final = {
    "busy": "it worked in the last samples",
    "idle": "it holds memory and does no work",
    "allocated": "it was granted a GPU and has no process on it",
    "unknown": "undecided so far, or no utilisation data",
}


def moment(unix_ns: int) -> str:
    """A time with its day."""
    return utc(unix_ns / 1e9, "%Y-%m-%d %H:%M UTC")


def state(of: str | None) -> str:
    """The meaning of a state."""
    return _STATES.get(of or "", "unknown")


def confidence(ratio: float | None) -> str:
    """How sure inferred memory is, to follow the word ``inferred``."""
    return "" if ratio is None else f" (confidence {percent(ratio)})"


def memory(measured_bytes: int | None, inferred_bytes: int | None, sure: float | None) -> str:
    """The memory of a workload or process."""
    parts = []
    if measured_bytes is not None:
        parts.append(f"{size(measured_bytes)} measured, by the driver's process lists")
    if inferred_bytes:
        parts.append(f"{size(inferred_bytes)} inferred{confidence(sure)}, from open devices, grants and growth")
    return "; ".join(parts) or "unknown: the driver reports no figure"


def holding(name: str, kind: str, bytes_: int, sure: float | None) -> str:
    """A workload's memory on one GPU."""
    if kind == "measured":
        return f"{name}: {size(bytes_)} measured, by the driver's process lists"
    return f"{name}: {size(bytes_)} inferred{confidence(sure)}: in no process list, by evidence for this workload"


def sm(ratio: float | None, places: int = 1) -> str:
    """SM utilisation."""
    if ratio is None:
        return "unknown: the driver reports no utilisation per process"
    summed = f", summed over {places} GPUs or MIG instances" if places > 1 else ""
    return f"share of the SMs{summed}: mean of the driver's samples in the last window"


def power(energy: MethodEnergy, window_s: float | None) -> str:
    """Mean power of the window."""
    if energy.total_mj is None or not window_s:
        return "unknown: no energy data, or this is the first sample"
    return f"mean of the last {window_s:.1f} s: {_methods(energy) or 'no energy'}"


def energy(so_far: MethodEnergy, since_ns: int) -> str:
    """Energy so far."""
    total_mj = so_far.total_mj
    if total_mj is None:
        return "unknown: no energy data"
    return f"{_methods(so_far) or 'none yet'}; {kilowatt_hours(total_mj)} in total since {moment(since_ns)}"


def _methods(energy: MethodEnergy) -> str:
    methods = (
        (energy.measured_mj, "measured (alone on the GPU)"),
        (energy.estimated_mj, "estimated (shared with others)"),
        (energy.inferred_mj, "inferred (hidden, the only possible user)"),
    )
    return "; ".join(f"{joules(part_mj)} {method}" for part_mj, method in methods if part_mj)


def idle(idle_s: float | None, *, places: int, now_s: float | None, energy_mj: int | None, since_ns: int) -> str:
    """Idle time so far. ``energy_mj`` is the energy used in it; ``now_s`` is the idle time until now."""
    if idle_s is None:
        return "unknown: no utilisation data"
    since = moment(since_ns)
    if not idle_s and now_s is None:
        return f"not idle since {since}"
    summed = f" of GPU time, summed over {places} GPUs or MIG instances" if places > 1 else ""
    used = "" if energy_mj is None else f", using {joules(energy_mj)}"
    now = "" if now_s is None else f"; idle for {span(now_s)} now"
    return f"held memory without work for {span(idle_s)}{summed}{used}{now} (since {since})"


def cost(amount: float | None, idle_amount: float | None, currency: str) -> str:
    """Cost so far."""
    if amount is None:
        return "unknown: no price for this GPU, or its state is undecided so far"
    idle = "unknown how much of it while idle" if idle_amount is None else f"{money(idle_amount, currency)} while idle"
    return f"so far, at the configured prices; {idle}"


# ---------------------------------------------------------------------------- GPUs


def gpu(of: GpuReport) -> list[str]:
    """How a GPU's figures were obtained, a sentence or two each."""
    lines = [_gpu_memory(of.memory)]
    if of.memory is not None and of.memory.reserved_bytes is None:
        lines.append("This driver does not report the memory that it reserves: it counts as in use.")
    lines += ["Utilisation and temperature: as the driver reports them.", f"Power: {gpu_power(of)}."]
    if of.totals is not None and of.has_energy:
        totals = of.totals
        lines.append(
            f"Energy so far: {joules(totals.total_mj)} = {joules(totals.attributed_mj)} attributed to workloads"
            f" + {joules(totals.idle_mj)} idle, without workloads + {joules(totals.unattributed_mj)} unattributed."
        )
    if of.basis is not None:
        lines.append(_basis(of.basis))
    return [*lines, f"UUID: {printable(of.identity.uuid)}"]


def _gpu_memory(split: MemorySplit | None) -> str:
    if split is None:
        return "Memory: unknown; the driver reports no figure."
    overcount = f" − {size(split.overcount_bytes)} counted twice by the lists" if split.overcount_bytes else ""
    reserved = "" if split.reserved_bytes is None else f" + {size(split.reserved_bytes)} reserved by the driver"
    return (
        f"Memory: {size(split.limit_bytes)} = {size(split.measured_bytes)} measured{overcount}"
        f" + {size(split.inferred_bytes)} inferred + {size(split.unattributed_bytes)} unattributed{reserved}"
        f" + {size(split.free_bytes)} free, exact to the byte."
    )


def gpu_power(of: GpuReport) -> str:
    """The power of a GPU: of the same window as its workloads' power, so that theirs sum to it."""
    now_w = of.reading.power_w
    if of.energy is None:
        return "unknown" if now_w is None else FROM_DRIVER
    return "the mean since the last sample" + ("" if now_w is None else f"; the driver reports {watts(now_w)} now")


def _basis(of: EnergyBasis) -> str:
    source = "the GPU's own counter" if of.source == "counter" else "power, integrated"
    return (
        f"Energy: {source}; divided by policy {printable(of.policy)}, model {printable(of.model)}."
        f" Idle power {watts(of.idle_power_w)} ({printable(of.idle_power_origin)});"
        f" with contexts loaded {watts(of.context_power_w)} ({printable(of.context_power_origin)})."
    )
