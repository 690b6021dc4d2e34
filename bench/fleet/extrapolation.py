"""Extrapolates a run on one machine to a fleet of thousands, with named assumptions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.fleet.run import Result


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured cost of one host, one point and one Collector.

    ``plain`` is OTLP as queues store it on disk, ``gzip`` one host's export as a node sends it to a gateway. The CPU
    time of a point at a gateway is for both of its layers.
    """

    series_per_host: float
    plain_bytes_per_point: float
    gzip_bytes_per_point: float
    backend_bytes_per_point: float
    agent_cpu_s_per_cycle: float
    agent_memory_bytes: float
    node_cpu_s_per_point: float
    gateway_cpu_s_per_point: float


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumptions. Gateways use half of their CPU, so that one may be down and a backlog can be worked off.

    ``disk_per_byte`` is what the file of a queue takes per byte that waits in it: 1.08 for 68 MB, measured apart.
    """

    hosts: int = 10_000
    export_interval_s: float = 15.0
    outage_s: float = 3600.0
    gateway_cores: int = 4
    gateway_busy: float = 0.5
    batch_points: int = 8192
    backend_answer_s: float = 0.1
    disk_per_byte: float = 1.1


@dataclass(frozen=True, slots=True)
class Sums:
    """A fleet. The number of gateways follows from CPU or from the backend's latency, plus one spare."""

    series: int
    points_per_s: float
    to_gateways_bytes_per_s: float
    to_backend_bytes_per_s: float
    gateway_cores: float
    gateways_by_cpu: int
    gateways_by_answers: int
    gateways: int
    host_queue_bytes: int
    gateway_queue_bytes: int
    all_gateways_queue_bytes: int


def measured(result: Result) -> Measured:
    """The measured cost per host and per point."""
    steady = result.ended.agents
    began = result.began.agents
    cycles = steady.cycles - began.cycles
    own_cpu_s = steady.cpu_s - began.cpu_s - (steady.simulation_cpu_s - began.simulation_cpu_s)
    passed = result.drained.totals.points - result.began.totals.points
    last = result.last
    return Measured(
        series_per_host=last.activity.points / last.activity.exports,
        plain_bytes_per_point=last.plain_bytes / last.points,
        gzip_bytes_per_point=last.gzip_bytes / last.points,
        backend_bytes_per_point=result.drained.totals.wire_bytes / result.drained.totals.points,
        agent_cpu_s_per_cycle=own_cpu_s / cycles,
        agent_memory_bytes=steady.memory_bytes / steady.agents,
        node_cpu_s_per_point=(result.drained.nodes.cpu_s - result.began.nodes.cpu_s) / passed,
        gateway_cpu_s_per_point=(result.drained.gateways.cpu_s - result.began.gateways.cpu_s) / passed,
    )


def fleet_sums(found: Measured, assumed: Assumed) -> Sums:
    """A fleet of hosts like the measured ones."""
    points_per_s = assumed.hosts * found.series_per_host / assumed.export_interval_s
    cores = points_per_s * found.gateway_cpu_s_per_point
    by_cpu = math.ceil(cores / (assumed.gateway_cores * assumed.gateway_busy))
    # A gateway has one request to the backend under way at a time, so that samples arrive in order (gateway.yaml).
    by_answers = math.ceil(points_per_s * assumed.backend_answer_s / assumed.batch_points)
    gateways = max(by_cpu, by_answers) + 1
    backlog_bytes = round(points_per_s * found.plain_bytes_per_point * assumed.disk_per_byte * assumed.outage_s)
    return Sums(
        series=round(assumed.hosts * found.series_per_host),
        points_per_s=points_per_s,
        to_gateways_bytes_per_s=points_per_s * found.gzip_bytes_per_point,
        to_backend_bytes_per_s=points_per_s * found.backend_bytes_per_point,
        gateway_cores=cores,
        gateways_by_cpu=by_cpu,
        gateways_by_answers=by_answers,
        gateways=gateways,
        host_queue_bytes=round(backlog_bytes / assumed.hosts),
        gateway_queue_bytes=round(backlog_bytes / gateways),
        all_gateways_queue_bytes=backlog_bytes,
    )
