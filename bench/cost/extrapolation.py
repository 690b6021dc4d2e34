"""Extrapolates the figures of one host to many, with named assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.cost.tools import OURS


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumptions: the agent's default intervals, and the number of hosts."""

    interval_s: float = 5.0
    export_interval_s: float = 15.0
    rack_hosts: int = 8
    fleet_hosts: int = 10_000


@dataclass(frozen=True, slots=True)
class Sum:
    """Several hosts together. CPU is in cores; bytes are those that Collectors receive, uncompressed."""

    what: str
    hosts: int
    gpus: int
    cpu_cores: float
    memory_gb: float
    series: int
    points_per_s: float
    received_bytes_per_s: float


def sums(document: Mapping[str, Any], assumed: Assumed) -> tuple[Sum, ...]:
    """A host like M, a rack and a fleet of them. Every cycle has a scrape, as in the measurement."""
    host = next(each for each in document["figures"] if (each["tool"], each["world"]) == (OURS, "M"))
    push_cpu_ms, pushed_bytes = host["push_cpu_ms"] or 0.0, host["pushed_bytes"] or 0
    cycle_cpu_ms = host["cpu_ms"] - push_cpu_ms * (host["pushes"] or 0) / host["cycles"]
    cpu_cores = (cycle_cpu_ms / assumed.interval_s + push_cpu_ms / assumed.export_interval_s) / 1e3

    def of(what: str, hosts: int) -> Sum:
        return Sum(
            what=what,
            hosts=hosts,
            gpus=hosts * host["gpus"],
            cpu_cores=hosts * cpu_cores,
            memory_gb=hosts * host["rss_mb"] / 1e3,
            series=hosts * host["series"],
            points_per_s=hosts * host["series"] / assumed.export_interval_s,
            received_bytes_per_s=hosts * pushed_bytes / assumed.export_interval_s,
        )

    return of("a host", 1), of("a rack", assumed.rack_hosts), of("a fleet", assumed.fleet_hosts)
