"""What the figures of one host say of many: arithmetic, with every assumption by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.cost.tools import OURS


@dataclass(frozen=True, slots=True)
class Assumed:
    """What is not measured: the agent's default intervals, and how many hosts there are of the measured kind."""

    interval_s: float = 5.0
    export_interval_s: float = 15.0
    rack_hosts: int = 8
    fleet_hosts: int = 10_000


@dataclass(frozen=True, slots=True)
class Sum:
    """So many hosts together. CPU is that of one core; bytes are what Collectors receive, not compressed."""

    what: str
    hosts: int
    gpus: int
    cpu_cores: float
    memory_gb: float
    series: int
    points_per_s: float
    received_bytes_per_s: float


def sums(document: Mapping[str, Any], assumed: Assumed) -> tuple[Sum, ...]:
    """A host like M, a rack and a fleet of them.

    CPU is reckoned from above: in the measured cycles there is a push and a scrape in each.
    """
    host = next(each for each in document["figures"] if (each["tool"], each["world"]) == (OURS, "M"))

    def of(what: str, hosts: int) -> Sum:
        return Sum(
            what=what,
            hosts=hosts,
            gpus=hosts * host["gpus"],
            cpu_cores=hosts * host["cpu_ms"] / 1e3 / assumed.interval_s,
            memory_gb=hosts * host["rss_mb"] / 1e3,
            series=hosts * host["series"],
            points_per_s=hosts * host["series"] / assumed.export_interval_s,
            received_bytes_per_s=hosts * host["pushed_bytes"] / assumed.export_interval_s,
        )

    return of("a host", 1), of("a rack", assumed.rack_hosts), of("a fleet", assumed.fleet_hosts)
