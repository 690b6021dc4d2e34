"""How good the figures are: what is explained and what is not, how the agents do, and what they cost."""

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
            "The most by which the states of a GPU's memory miss its limit. Always 0, or it is a bug.",
            Unit.BYTES,
            Query("max(abs(<otel_gpu.conservation.memory.error>))"),
            width=4,
            alarm=1,
        ),
        stat(
            "Conservation error, energy",
            "The most by which energy that was given to somebody misses what a GPU counted. Always 0, or it is a bug.",
            Unit.JOULES,
            Query("max(abs(<otel_gpu.conservation.energy.error>))"),
            width=4,
            alarm=0.001,
        ),
        stat(
            "Coverage",
            "Used memory of all GPUs that is somebody's, measured or inferred.",
            Unit.RATIO,
            Query(
                'sum(<gpu.device.memory.usage>{<gpu.memory.state>=~"measured|inferred"}) '
                '/ sum(<gpu.device.memory.usage>{<gpu.memory.state>=~"measured|inferred|unattributed"})'
            ),
            width=4,
        ),
        stat(
            "Memory unattributed",
            "Used, and nothing points to anybody.",
            Unit.BYTES,
            Query('sum(<gpu.device.memory.usage>{<gpu.memory.state>="unattributed"})'),
            width=4,
        ),
        stat(
            "Energy unattributed",
            "Part of all energy in the time range that nothing explains.",
            Unit.RATIO,
            Query(
                'sum(increase(<gpu.device.energy>{<gpu.energy.state>="unattributed"}[$__range])) '
                "/ sum(increase(<gpu.device.energy>[$__range]))"
            ),
            width=4,
        ),
        stat(
            "Sources unavailable",
            "Sources that tell nothing, over all agents: the driver, processes, and whoever knows names.",
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
    "What is explained",
    (
        lines(
            "Coverage, the worst GPU of each host",
            "Fraction of a GPU's used memory that somebody's is.",
            Unit.RATIO,
            Query("min by (<host.name>) (<otel_gpu.attribution.coverage>)", "{{<host.name>}}"),
            width=8,
            top=1,
        ),
        stack(
            "Memory unattributed, by host",
            "Used, and nothing points to anybody: processes that cannot be seen, or memory of the driver itself.",
            Unit.BYTES,
            Query(
                'sum by (<host.name>) (<gpu.device.memory.usage>{<gpu.memory.state>="unattributed"})',
                "{{<host.name>}}",
            ),
            width=8,
        ),
        stack(
            "Power unattributed, by host",
            "Rate of the energy that nothing explains.",
            Unit.WATTS,
            Query(
                'sum by (<host.name>) (rate(<gpu.device.energy>{<gpu.energy.state>="unattributed"}[$__rate_interval]))',
                "{{<host.name>}}",
            ),
            width=8,
        ),
        stack(
            "Power by how it was found",
            "Measured: one process alone on its GPU. Estimated: several, divided by work and by who was there. "
            "Inferred: nobody listed, one candidate.",
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
            "How sure it is, from 0 to 1: 1 where one candidate alone could explain it, about 1/n for n alike.",
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
            "What the driver's process lists claim beyond what is used: lists and sums are not read at the same "
            "instant, and processes can share memory.",
            Unit.BYTES,
            Query("sum by (<host.name>) (<gpu.device.memory.overcount>)", "{{<host.name>}}"),
            width=8,
        ),
        table(
            "What the division of energy rests on",
            "Source: the hardware's counter, or the integral of power. Origins: whether power without work was "
            "observed, extrapolated or assumed.",
            (
                Column("host.name", "Host", link=TO_NODE),
                Column("gpu.index", "GPU"),
                Column("source", "Source"),
                Column("policy", "Policy"),
                Column("model", "Model"),
                Column("gpu.energy.idle.origin", "Power with nobody there"),
                Column("gpu.energy.held.origin", "Power of contexts"),
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
            "The state each source is in. Degraded: it answers, and something is missing. otel-gpu doctor on that host "
            "tells what, and the fix.",
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
            "Per second. Those of attribution are figures that cannot be true: a counter that fell, more energy than a "
            "GPU can draw.",
            Unit.COUNT,
            Query(
                "sum by (<host.name>, <otel_gpu.source>) (rate(<otel_gpu.source.errors>[$__rate_interval]))",
                "{{<host.name>}} {{<otel_gpu.source>}}",
            ),
        ),
        lines(
            "Time a cycle takes, by source",
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
            "Resident.",
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
    "How good the figures are: what is explained and what is not, how the agents do, and what they cost.",
    '<host.name>=~"$host"',
    (HOSTS,),
    (_SUMS, _EXPLAINED, _AGENTS),
)
