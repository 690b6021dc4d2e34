"""Namespaces and workloads: what they hold, use, draw and waste, and what that costs."""

from __future__ import annotations

from typing import Final

from tools.dashboards.model import Column, Dashboard, Query, Section, Unit, Variable
from tools.dashboards.panels import lines, stack, stat, table
from tools.dashboards.shared import HERE, METHOD_COLORS, STATE_COLORS, TO_NODE, each

_HOST: Final = Variable("host", "Host", "<gpu.workload.access>", "host.name")
_NAMESPACE: Final = Variable(
    "namespace", "Namespace", '<gpu.workload.access>{<host.name>=~"$host"}', "k8s.namespace.name"
)
_WORKLOAD: Final = Variable(
    "workload",
    "Workload",
    '<gpu.workload.access>{<host.name>=~"$host", <k8s.namespace.name>=~"$namespace"}',
    "gpu.workload.name",
)

# Replicas of one Deployment have a name in common, and so may pods of two hosts: each is a workload of its own.
_EVERY: Final = "<host.name>, <k8s.namespace.name>, <k8s.pod.name>, <gpu.workload.kind>, <gpu.workload.name>"
_NAMED: Final = "{{<host.name>}} {{<k8s.namespace.name>}} {{<k8s.pod.name>}} {{<gpu.workload.name>}}"

# Under MIG no driver tells of work: time there would count as time without any.
_EFFICIENCY: Final = (
    "sum by () (increase(<gpu.workload.compute.time>[$__range])) "
    '/ (sum by () (increase(<gpu.workload.time>{<gpu.mig.uuid>=""}[$__range])) > 0)'
)

_SUMS: Final = Section(
    "In the time range",
    (
        stat(
            "Energy",
            "Each workload's part of its GPUs' energy counters: measured where one process was alone on a GPU, "
            "estimated where several shared it, inferred where nobody was listed and evidence points to one.",
            Unit.KWH,
            Query("sum(increase(<gpu.workload.energy>[$__range])) / 3.6e6"),
        ),
        stat(
            "Held",
            "Workload-hours on GPUs, whatever was done: two workloads on one GPU for an hour are two, and so is one on "
            "two GPUs.",
            Unit.WORKLOAD_HOURS,
            Query("sum(increase(<gpu.workload.time>[$__range])) / 3600"),
        ),
        stat(
            "Used",
            "GPU-hours of work done: SM share, summed over time. Nothing where the driver does not tell (MIG).",
            Unit.GPU_HOURS,
            Query("sum(increase(<gpu.workload.compute.time>[$__range])) / 3600"),
        ),
        stat(
            "Wasted",
            "Workload-hours in which memory was held without any work, or a GPU was given and nobody was on it. Three "
            "that rest on one GPU for an hour are three.",
            Unit.WORKLOAD_HOURS,
            Query('sum(increase(<gpu.workload.time>{<gpu.state>=~"idle|allocated"}[$__range])) / 3600'),
        ),
        stat(
            "Memory wasted",
            "Memory held by idle processes, times how long.",
            Unit.GIB_HOURS,
            Query("sum(increase(<gpu.workload.idle.memory.time>[$__range])) / 1024 ^ 3 / 3600"),
        ),
        stat(
            "Energy wasted",
            "Energy of workloads while they were idle.",
            Unit.KWH,
            Query("sum(increase(<gpu.workload.idle.energy>[$__range])) / 3.6e6"),
        ),
        stat(
            "Cost",
            "Time and energy at the prices the agents were given (--price-gpu-hour, --price-kwh); without prices there "
            "is none.",
            Unit.NONE,
            Query("sum by (<gpu.cost.currency>) (increase(<gpu.workload.cost>[$__range]))", "{{<gpu.cost.currency>}}"),
        ),
        stat(
            "Cost of waste",
            "What of it was spent idle, or on GPUs given and not used.",
            Unit.NONE,
            Query(
                'sum by (<gpu.cost.currency>) (increase(<gpu.workload.cost>{<gpu.state>=~"idle|allocated"}[$__range]))',
                "{{<gpu.cost.currency>}}",
            ),
        ),
    ),
)

_EACH: Final = Section(
    "Workloads",
    (
        table(
            "Workloads",
            "Memory, SM, power and idle time now, empty for who has ended; energy, hours on GPUs, GPU-hours of work "
            "and cost in the time range. Efficiency is work done by time held, without time under MIG, where drivers "
            "tell of no work. Idle for: without work on any of its GPUs. Empty is not known, which is not zero.",
            (
                Column("host.name", "Host", link=TO_NODE),
                Column("k8s.namespace.name", "Namespace"),
                Column("k8s.pod.name", "Pod"),
                Column("gpu.workload.name", "Workload"),
                Column("gpu.workload.kind", "Kind"),
                Column("A", "Memory", Unit.BYTES),
                Column("B", "SM", Unit.RATIO),
                Column("C", "Power", Unit.WATTS),
                Column("D", "Energy", Unit.KWH),
                Column("E", "Held", Unit.WORKLOAD_HOURS),
                Column("F", "Used", Unit.GPU_HOURS),
                Column("G", "Efficiency", Unit.RATIO),
                Column("H", "Idle for", Unit.SECONDS),
                Column("I", "Cost"),
            ),
            *(
                Query(each(_EVERY, figure))
                for figure in (
                    "sum by () (<gpu.workload.memory.usage>)" + HERE,
                    "sum by () (<gpu.workload.utilization>)" + HERE,
                    "sum by () (rate(<gpu.workload.energy>[$__rate_interval]))" + HERE,
                    "sum by () (increase(<gpu.workload.energy>[$__range])) / 3.6e6",
                    "sum by () (increase(<gpu.workload.time>[$__range])) / 3600",
                    "sum by () (increase(<gpu.workload.compute.time>[$__range])) / 3600",
                    _EFFICIENCY,
                    "min by () (<gpu.workload.idle.duration>)" + HERE,
                    "sum by () (increase(<gpu.workload.cost>[$__range]))",
                )
            ),
            width=24,
        ),
    ),
)

_USE: Final = Section(
    "Memory and work",
    (
        stack(
            "Memory by how it was found",
            "Measured: the driver lists it. Inferred: the driver does not, and evidence points to the workload.",
            Unit.BYTES,
            Query("sum by (<gpu.attribution.method>) (<gpu.workload.memory.usage>)", "{{<gpu.attribution.method>}}"),
            colors=METHOD_COLORS,
        ),
        stack(
            "Memory by workload",
            "What each one holds, measured and inferred.",
            Unit.BYTES,
            Query(each(_EVERY, "sum by () (<gpu.workload.memory.usage>) > 0"), _NAMED),
        ),
        stack(
            "Work",
            "GPU-seconds of work per second: SM share. Not told under MIG.",
            Unit.GPUS,
            Query(each(_EVERY, "sum by () (rate(<gpu.workload.compute.time>[$__rate_interval]))"), _NAMED),
        ),
        stack(
            "Workloads on GPUs, by what they do",
            "Seconds on GPUs, per second, by what was done there: two workloads on one GPU are two. Unknown is not "
            "idle.",
            Unit.WORKLOADS,
            Query("sum by (<gpu.state>) (rate(<gpu.workload.time>[$__rate_interval]))", "{{<gpu.state>}}"),
            colors=STATE_COLORS,
        ),
    ),
)

_ENERGY: Final = Section(
    "Energy, waste, cost",
    (
        stack(
            "Power by how it was found",
            "Measured: one process alone on its GPU. Estimated: several, divided by work and by who was there. "
            "Inferred: nobody listed, one candidate.",
            Unit.WATTS,
            Query(
                "sum by (<gpu.attribution.method>) (rate(<gpu.workload.energy>[$__rate_interval]))",
                "{{<gpu.attribution.method>}}",
            ),
            colors=METHOD_COLORS,
        ),
        stack(
            "Power by workload",
            "Each one's part of its GPUs' energy counters.",
            Unit.WATTS,
            Query(each(_EVERY, "sum by () (rate(<gpu.workload.energy>[$__rate_interval]))"), _NAMED),
        ),
        stack(
            "Memory held by idle processes",
            "By workload. Empty where it is not known whether somebody works.",
            Unit.BYTES,
            Query(each(_EVERY, "sum by () (<gpu.workload.idle.memory>) > 0"), _NAMED),
            width=8,
        ),
        lines(
            "Idle for",
            "How long each has held memory without work on any of its GPUs: 0 while it works on one, no line while "
            "that is known of none.",
            Unit.SECONDS,
            Query(each(_EVERY, "min by () (<gpu.workload.idle.duration>)"), _NAMED),
            width=8,
        ),
        stack(
            "Cost per hour",
            "Time and energy at the prices the agents were given; none without prices.",
            Unit.NONE,
            Query(
                "sum by (<gpu.cost.basis>, <gpu.cost.currency>) (rate(<gpu.workload.cost>[$__rate_interval])) * 3600",
                "{{<gpu.cost.basis>}} {{<gpu.cost.currency>}}",
            ),
            width=8,
        ),
    ),
)

WORKLOAD: Final = Dashboard(
    "workload",
    "GPU / Workload",
    "Namespaces and workloads: what they hold, use, draw and waste, and what that costs.",
    '<host.name>=~"$host", <k8s.namespace.name>=~"$namespace", <gpu.workload.name>=~"$workload"',
    (_HOST, _NAMESPACE, _WORKLOAD),
    (_SUMS, _EACH, _USE, _ENERGY),
)
