"""Quality of the figures: attribution, conservation errors, and the cost of the agents."""

from __future__ import annotations

from typing import Final

from tools.dashboards.model import Column, Dashboard, Query, Section, Unit
from tools.dashboards.panels import lines, stack, stat, table
from tools.dashboards.shared import HOSTS, METHOD_COLORS, TO_NODE

_SUMS: Final = Section(
    "Now",
    (
        stat(
            "Conservation error, memory",
            "The largest difference between the sum of the memory states of a GPU and its limit. Any value but 0 is a"
            " bug.",
            Unit.BYTES,
            Query("max(abs(<otel_gpu.conservation.memory.error>))"),
            width=4,
            alarm=1,
        ),
        stat(
            "Conservation error, energy",
            "The largest difference between the energy attributed and the energy that a GPU counted. Any value but 0 "
            "is a bug.",
            Unit.JOULES,
            Query("max(abs(<otel_gpu.conservation.energy.error>))"),
            width=4,
            alarm=0.001,
        ),
        stat(
            "Coverage",
            "Share of used memory of all GPUs that is attributed, measured or inferred.",
            Unit.RATIO,
            Query(
                'sum(<gpu.device.memory.usage>{<gpu.memory.state>=~"measured|inferred"}) '
                '/ sum(<gpu.device.memory.usage>{<gpu.memory.state>=~"measured|inferred|unattributed"})'
            ),
            width=4,
        ),
        stat(
            "Memory unattributed",
            "Memory in use without evidence for a workload.",
            Unit.BYTES,
            Query('sum(<gpu.device.memory.usage>{<gpu.memory.state>="unattributed"})'),
            width=4,
        ),
        stat(
            "Energy unattributed",
            "Share of the energy in the time range that is unattributed.",
            Unit.RATIO,
            Query(
                'sum(increase(<gpu.device.energy>{<gpu.energy.state>="unattributed"}[$__range])) '
                "/ sum(increase(<gpu.device.energy>[$__range]))"
            ),
            width=4,
        ),
        stat(
            "Sources unavailable",
            "Sources without data, over all agents: the driver, processes, and name sources.",
            Unit.NONE,
            Query(
                'sum(max by (<host.name>, <otel_gpu.source>) (<otel_gpu.source.state>{<otel_gpu.state>="unavailable"}))'
            ),
            width=4,
            alarm=1,
        ),
    ),
)

_EXPLAINED: Final = Section(
    "Attribution",
    (
        lines(
            "Coverage, the worst GPU of each host",
            "Share of the used memory of a GPU that is attributed.",
            Unit.RATIO,
            Query("min by (<host.name>) (<otel_gpu.attribution.coverage>)", "{{<host.name>}}"),
            width=8,
            top=1,
        ),
        stack(
            "Memory unattributed, by host",
            "Memory in use without evidence for a workload: processes that the agent cannot see, or memory of the "
            "driver.",
            Unit.BYTES,
            Query(
                'sum by (<host.name>) (<gpu.device.memory.usage>{<gpu.memory.state>="unattributed"})',
                "{{<host.name>}}",
            ),
            width=8,
        ),
        stack(
            "Power unattributed, by host",
            "Rate of unattributed energy.",
            Unit.WATTS,
            Query(
                'sum by (<host.name>) (rate(<gpu.device.energy>{<gpu.energy.state>="unattributed"}[$__rate_interval]))',
                "{{<host.name>}}",
            ),
            width=8,
        ),
        stack(
            "Power by method",
            "Measured: one process alone on its GPU. Estimated: several processes, divided by work and presence. "
            "Inferred: a process that the driver does not list.",
            Unit.WATTS,
            Query(
                "sum by (<gpu.attribution.method>) (rate(<gpu.workload.energy>[$__rate_interval]))",
                "{{<gpu.attribution.method>}}",
            ),
            width=8,
            colors=METHOD_COLORS,
        ),
        lines(
            "Confidence of inferred memory",
            "From 0 to 1: 1 if a single candidate can explain the memory, about 1/n for n equal candidates.",
            Unit.RATIO,
            Query(
                "min by (<host.name>, <gpu.index>, <k8s.namespace.name>, <k8s.pod.name>, <gpu.workload.name>) "
                "(<gpu.workload.memory.confidence>)",
                "{{<host.name>}} GPU {{<gpu.index>}} "
                "{{<k8s.namespace.name>}} {{<k8s.pod.name>}} {{<gpu.workload.name>}}",
            ),
            width=8,
            top=1,
        ),
        lines(
            "Memory counted twice",
            "Memory that the driver's process lists claim beyond the memory in use. Lists and sums are not read at "
            "the same instant, and processes can share memory.",
            Unit.BYTES,
            Query("sum by (<host.name>) (<gpu.device.memory.overcount>)", "{{<host.name>}}"),
            width=8,
        ),
        table(
            "Basis of the energy figures",
            "Source: the hardware counter, or power over time. Origins: whether power without work was observed, "
            "extrapolated or assumed.",
            (
                Column("host.name", "Host", link=TO_NODE),
                Column("gpu.index", "GPU"),
                Column("source", "Source"),
                Column("policy", "Policy"),
                Column("model", "Model"),
                Column("gpu.energy.idle.origin", "Idle power"),
                Column("gpu.energy.held.origin", "Context power"),
                Column("A", "There"),
            ),
            Query(
                "max by (<host.name>, <gpu.index>, source, policy, model, <gpu.energy.idle.origin>, "
                "<gpu.energy.held.origin>) (<gpu.device.energy.info>)"
            ),
            width=24,
        ),
    ),
)

_AGENTS: Final = Section(
    "The agents",
    (
        table(
            "Sources",
            "The state of each source. Degraded: it responds, but something is missing. otel-gpu doctor on that host "
            "shows the reason and the fix.",
            (
                Column("host.name", "Host", link=TO_NODE),
                Column("otel_gpu.source", "Source"),
                Column("otel_gpu.state", "State"),
                Column("A", "There"),
            ),
            Query("max by (<host.name>, <otel_gpu.source>, <otel_gpu.state>) (<otel_gpu.source.state>) == 1"),
        ),
        lines(
            "Errors of sources",
            "Per second. Errors of the source attribution are impossible figures: a counter that fell, or more energy"
            " than a GPU can use.",
            Unit.COUNT,
            Query(
                "sum by (<host.name>, <otel_gpu.source>) (rate(<otel_gpu.source.errors>[$__rate_interval]))",
                "{{<host.name>}} {{<otel_gpu.source>}}",
            ),
        ),
        lines(
            "Duration of a cycle by source",
            "The slowest of all agents.",
            Unit.SECONDS,
            Query("max by (<otel_gpu.source>) (<otel_gpu.collection.duration>)", "{{<otel_gpu.source>}}"),
            width=6,
        ),
        lines(
            "CPU of the agents",
            "Cores: CPU-seconds per second.",
            Unit.CORES,
            Query("sum by (<host.name>) (rate(<otel_gpu.cpu.time>[$__rate_interval]))", "{{<host.name>}}"),
            width=6,
        ),
        lines(
            "Memory of the agents",
            "Resident memory.",
            Unit.BYTES,
            Query("sum by (<host.name>) (<otel_gpu.memory.usage>)", "{{<host.name>}}"),
            width=6,
        ),
        lines(
            "Series",
            "Series in a collection.",
            Unit.COUNT,
            Query("sum by (<host.name>) (<otel_gpu.series>)", "{{<host.name>}}"),
            width=6,
        ),
    ),
)

QUALITY: Final = Dashboard(
    "quality",
    "GPU / Quality",
    "Quality of the figures: attribution, conservation errors, and the cost of the agents.",
    '<host.name>=~"$host"',
    (HOSTS,),
    (_SUMS, _EXPLAINED, _AGENTS),
)
