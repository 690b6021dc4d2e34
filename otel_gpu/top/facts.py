"""What stands under an opened workload: its names in full, and how its figures were obtained, in the page's words."""

from __future__ import annotations

from typing import Final

from otel_gpu.export.table_figures import joules, percent, size, span
from otel_gpu.export.text import printable
from otel_gpu.model import MethodEnergy
from otel_gpu.top.cycle import Use, Workload

KINDS: Final = {"slurm_job": "Slurm job", "systemd_unit": "systemd unit", "lxc": "LXC"}


def facts(workload: Workload) -> list[str]:
    """A line each; nothing in them acts on a terminal."""
    kind = KINDS.get(workload.kind, workload.kind)
    lines = [
        None if workload.pod is None else "pod " + "/".join(filter(None, (workload.namespace, workload.pod))),
        None if workload.image is None else f"image {workload.image}",
        f"{kind} {workload.id}" if workload.id != kind else kind,
        f"memory: {_memory(workload)}",
        f"energy: {_energy(workload.use.so_far)}",
        f"idle: {_idle(workload.use)}",
        None if workload.processes else "no process of it is seen on a GPU",
    ]
    return [printable(line) for line in lines if line is not None]


def _memory(workload: Workload) -> str:
    said = []
    if workload.measured_bytes is not None:
        said.append(f"{size(workload.measured_bytes)} measured, by the driver's process lists")
    if workload.inferred_bytes:
        sure = "" if workload.confidence is None else f", {percent(workload.confidence)} sure"
        said.append(f"{size(workload.inferred_bytes)} inferred{sure}, by open devices, grants and growth")
    return "; ".join(said) or "not known: the driver gives no figure"


def _energy(energy: MethodEnergy) -> str:
    if energy.total_mj is None:
        return "not known: nobody counts energy here"
    methods = (
        (energy.measured_mj, "measured (alone on the GPU)"),
        (energy.estimated_mj, "estimated (shared with others)"),
        (energy.inferred_mj, "inferred (hidden, and the only one it can be)"),
    )
    return "; ".join(f"{joules(part_mj)} {how}" for part_mj, how in methods if part_mj) or "none yet"


def _idle(use: Use) -> str:
    if use.idle_s is None:
        return "not known: nobody can tell who works here"
    if not use.idle_s and use.idle_for_s is None:
        return "not found idle"
    summed = f" of GPU time, summed over {use.idle_places} places" if use.idle_places > 1 else ""
    lately = "" if use.idle_for_s is None else f"; idle for {span(use.idle_for_s)} now"
    return f"held memory and did no work for {span(use.idle_s)}{summed}{lately}"
