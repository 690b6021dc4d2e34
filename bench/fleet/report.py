"""A result as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from bench.fleet.extrapolation import Assumed, Measured, Sums, fleet_sums, measured
from bench.fleet.run import Result

_ENOUGH: Final = 0.9
_TOO_SMALL: Final = "; too many agents for this machine, so the costs below are too high: use fewer --agents"


def as_text(result: Result) -> Iterator[str]:
    """Lines of a table: delivery of the points, cost, and extrapolation to many hosts."""
    found, assumed = measured(result), Assumed()
    sections = {
        "delivery": _delivery(result),
        "cost": _cost(result, found),
        f"{assumed.hosts:,} such hosts, every {assumed.export_interval_s:g} s": _fleet(
            fleet_sums(found, assumed), assumed
        ),
    }
    for title, rows in sections.items():
        yield title
        yield from (f"  {name:28}{value}" for name, value in rows)


def as_document(result: Result) -> dict[str, object]:
    """The same as data; bytes, seconds, points."""
    found, assumed = measured(result), Assumed()
    totals = result.drained.totals
    return {
        "options": asdict(result.options),
        "balance": asdict(result.balance),
        "twice_points": totals.twice_points,
        "late_points": totals.late_points,
        "points_per_s": points_per_s(result),
        "exports": result.ended.agents.exports - result.began.agents.exports,
        "exports_due": exports_due(result),
        "pushing_s": result.ended.time_s - result.began.time_s,
        "drain_s": result.drained.time_s - result.ended.time_s,
        "outage": asdict(result.outage),
        "measured": asdict(found),
        "assumed": asdict(assumed),
        "sums": asdict(fleet_sums(found, assumed)),
    }


def points_per_s(result: Result) -> float:
    """Points that agents sent per second while all of them pushed."""
    points = result.ended.agents.points - result.began.agents.points
    return points / (result.ended.time_s - result.began.time_s)


def exports_due(result: Result) -> int:
    """The number of exports due in that time; a late export is not repeated."""
    pushing_s = result.ended.time_s - result.began.time_s
    return round(result.options.agents * pushing_s / result.options.export_interval_s)


def is_too_small(result: Result) -> bool:
    """Whether this machine was overloaded, so that measured costs are too high."""
    return result.ended.agents.exports - result.began.agents.exports < _ENOUGH * exports_due(result)


def _delivery(result: Result) -> Iterator[tuple[str, str]]:
    balance, outage, totals = result.balance, result.outage, result.drained.totals
    exports = result.ended.agents.exports - result.began.agents.exports
    yield "agents", f"{result.options.agents}"
    yield "points per second", f"{points_per_s(result):,.0f}"
    yield "exports", f"{exports:,} of {exports_due(result):,} that were due{_TOO_SMALL if is_too_small(result) else ''}"
    yield "sent", f"{balance.sent_points:,} points"
    yield "received", f"{balance.received_points:,} points"
    yield "lost", f"{balance.lost_points:,} points"
    yield "twice", f"{totals.twice_points:,} points ({totals.twice_points / totals.points:.1%})"
    yield "out of order", f"{totals.late_points:,} points"
    yield "received but never sent", f"{balance.unknown_points:,} points"
    yield "not confirmed to agents", f"{balance.untaken_points:,} points"
    yield "hosts whose counters differ", f"{len(balance.hosts_with_other_counters)}"
    yield (
        outage.gateway,
        (
            f"killed, down for {outage.away_s:.0f} s, in which {outage.sent_points:,} points were sent "
            f"and nodes kept up to {outage.node_queue_bytes / 1e6:.1f} MB"
        ),
    )
    yield "all received", f"{result.drained.time_s - result.ended.time_s:.0f} s after the agents were stopped"


def _cost(result: Result, found: Measured) -> Iterator[tuple[str, str]]:
    nodes, gateways = result.drained.nodes, result.drained.gateways
    yield "series per host", f"{found.series_per_host:.0f}"
    yield "agent, CPU", f"{found.agent_cpu_s_per_cycle * 1e3:.1f} ms per cycle of {result.options.interval_s:g} s"
    yield "agent, memory", f"{found.agent_memory_bytes / 1e6:.1f} MB, many in a process"
    yield "point, plain", f"{found.plain_bytes_per_point:.0f} bytes"
    yield "point, node to gateway", f"{found.gzip_bytes_per_point:.1f} bytes (gzip)"
    yield "point, gateway to backend", f"{found.backend_bytes_per_point:.1f} bytes (gzip)"
    yield "node Collector", _collector(found.node_cpu_s_per_point, nodes.memory_bytes / nodes.collectors)
    yield "gateway", _collector(found.gateway_cpu_s_per_point, gateways.memory_bytes / gateways.collectors)


def _collector(cpu_s: float, memory_bytes: float) -> str:
    return f"{cpu_s * 1e6:.1f} µs of CPU per point, {memory_bytes / 1e6:.0f} MB each"


def _fleet(sums: Sums, assumed: Assumed) -> Iterator[tuple[str, str]]:
    outage = f"{assumed.outage_s / 3600:g} h"
    yield "series", f"{sums.series:,}"
    yield "points per second", f"{sums.points_per_s:,.0f}"
    yield "to gateways", f"{sums.to_gateways_bytes_per_s / 1e6:.1f} MB/s"
    yield "to the backend", f"{sums.to_backend_bytes_per_s / 1e6:.1f} MB/s"
    yield (
        "gateways",
        (
            f"{sums.gateways}: {sums.gateway_cores:.1f} cores of work need {sums.gateways_by_cpu} of "
            f"{assumed.gateway_cores} cores, {assumed.gateway_busy:.0%} busy; a backend that answers in "
            f"{assumed.backend_answer_s:g} s needs {sums.gateways_by_answers}; plus one spare"
        ),
    )
    yield f"disk, gateways down {outage}", f"{sums.host_queue_bytes / 1e6:.0f} MB on each host"
    yield f"disk, backend down {outage}", f"{sums.gateway_queue_bytes / 1e9:.0f} GB on each gateway"
