"""What the page shows beside the document: totals so far, what figures rest on, states, the last hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otel_gpu.export.table import all_told
from otel_gpu.model import (
    EnergyBasis,
    GpuReport,
    GpuState,
    ProcessReport,
    Report,
    Totals,
    WorkloadGpu,
)

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class About:
    """The agent that is looked at. ``currency`` is ``None`` where no prices are set."""

    version: str
    host_name: str
    interval_s: float
    simulated_because: str | None = None
    currency: str | None = None


def particulars(attribution: Report, about: About, history: Object) -> Object:
    """As plain data. ``workloads``, their ``gpus``, ``processes`` and ``sources`` stand in the document's order."""
    gpus = {gpu.identity.uuid: gpu for gpu in attribution.gpus}
    driver = attribution.driver
    return {
        "at": attribution.wall_ns / 1e9,
        "window_s": attribution.window_s,
        "since": attribution.epoch_ns / 1e9,
        "version": about.version,
        "host": about.host_name,
        "interval_s": about.interval_s,
        "simulated": about.simulated_because,
        "currency": about.currency,
        "driver": None if driver is None else driver.driver_version,
        "pod": None if attribution.pod is None else str(attribution.pod),
        "all_told": all_told(attribution),
        "gpus": [_gpu(gpu) for gpu in attribution.gpus],
        "workloads": [
            {
                "naming": workload.naming,
                "outer": workload.ref.outer_container_id,
                "gpus": [_part(part, gpus) for part in workload.reported_gpus],
            }
            for workload in attribution.workloads
            if workload.reported_gpus
        ],
        "processes": [_process(process, gpus) for process in attribution.processes if process.is_reported],
        "sources": [source.state.value for source in attribution.sources],
        "history": history,
    }


def _gpu(gpu: GpuReport) -> Object:
    reading, totals = gpu.reading, gpu.totals
    return {
        "health": reading.health.value,
        "reason": reading.reason,
        "power_limit_w": reading.power_limit_w,
        "energy_mj": None
        if totals is None or not gpu.has_energy
        else {
            "attributed": totals.attributed_mj,
            "idle": totals.idle_mj,
            "unattributed": totals.unattributed_mj,
        },
        "basis": None if gpu.basis is None else _basis(gpu.basis),
    }


def _basis(basis: EnergyBasis) -> Object:
    return {
        "source": basis.source,
        "policy": basis.policy,
        "model": basis.model,
        "idle_w": basis.idle_power_w,
        "idle_origin": basis.idle_power_origin,
        "held_w": basis.context_power_w,
        "held_origin": basis.context_power_origin,
    }


def _part(part: WorkloadGpu, gpus: Mapping[str, GpuReport]) -> Object:
    totals, costs = part.totals, part.costs if _is_charged(part) else ()
    gpu = gpus.get(part.gpu_uuid)
    idle_cost = sum(cost.amount for cost in costs if cost.state is GpuState.IDLE)
    return {
        "index": part.gpu_index,
        "profile": part.mig_profile,
        "active": part.active,
        "allocation": part.allocation,
        "energy_mj": _energy_so_far(totals, gpu),
        "idle_mj": None if totals is None else totals.idle_mj,
        "idle_s": _idle_so_far(part, gpu),
        "since": None if totals is None else totals.since_ns / 1e9,
        "cost": sum(cost.amount for cost in costs) if costs else None,
        "idle_cost": idle_cost if costs and (idle_cost or _can_be_idle(part, gpu)) else None,
    }


def _is_charged(part: WorkloadGpu) -> bool:
    """Whether its cost is known: 0 of who is undecided only means that nothing is decided yet."""
    undecided = part.active and part.state is GpuState.UNKNOWN
    return not undecided or any(cost.amount for cost in part.costs)


def _process(process: ProcessReport, gpus: Mapping[str, GpuReport]) -> Object:
    lately, totals = process.energy, process.totals
    return {
        "kind": process.workload.kind.value,
        "naming": process.naming,
        "outer": process.workload.outer_container_id,
        "index": process.gpu_index,
        "mig": process.mig_uuid,
        "profile": process.mig_profile,
        "active": process.active,
        "lately_mj": {
            "measured": lately.measured_mj,
            "estimated": lately.estimated_mj,
            "inferred": lately.inferred_mj,
        },
        "energy_mj": _energy_so_far(totals, gpus.get(process.gpu_uuid)),
        "since": None if totals is None else totals.since_ns / 1e9,
        "idle_s": _idle_so_far(process, gpus.get(process.gpu_uuid)),
    }


def _idle_so_far(use: WorkloadGpu | ProcessReport, gpu: GpuReport | None) -> float | None:
    """Seconds; ``None`` where 0 would only mean that nobody can tell who works, or that nothing is decided yet."""
    totals = use.totals
    if totals is None or not (totals.idle_us or _can_be_idle(use, gpu)):
        return None
    return totals.idle_us / 1e6


def _can_be_idle(use: WorkloadGpu | ProcessReport, gpu: GpuReport | None) -> bool:
    """Whether somebody could tell: then, not to have been found idle is to have worked."""
    undecided = use.active and use.state is GpuState.UNKNOWN
    return not undecided and gpu is not None and gpu.has_utilization


def _energy_so_far(totals: Totals | None, gpu: GpuReport | None) -> dict[str, int] | None:
    """By method; ``None`` where 0 would only mean that nobody counts."""
    if totals is None or not (totals.energy.total_mj or (gpu is not None and gpu.has_energy)):
        return None
    energy = totals.energy
    return {
        "measured": energy.measured_mj or 0,
        "estimated": energy.estimated_mj or 0,
        "inferred": energy.inferred_mj or 0,
    }
