"""Namespaces and workloads: memory, work, energy, waste and cost."""

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

# Replicas of a Deployment share a name, and pods of two hosts may share one. Each is a workload of its own.
_EVERY: Final = "<host.name>, <k8s.namespace.name>, <k8s.pod.name>, <gpu.workload.kind>, <gpu.workload.name>"
_NAMED: Final = "{{<host.name>}} {{<k8s.namespace.name>}} {{<k8s.pod.name>}} {{<gpu.workload.name>}}"

# In MIG mode the driver does not report work. Time there would count as time without work.
_EFFICIENCY: Final = (
    "sum by () (increase(<gpu.workload.compute.time>[$__range])) "
    '/ (sum by () (increase(<gpu.workload.time>{<gpu.mig.uuid>=""}[$__range])) > 0)'
)

_SUMS: Final = Section(
    "In the time range",
    (
        stat(
            "Energy",
            "Energy of the GPUs, divided among workloads: measured if one process was alone on a GPU, estimated if "
            "several shared it, inferred for a process that the driver does not list.",
            Unit.KWH,
            Query("sum(increase(<gpu.workload.energy>[$__range])) / 3.6e6"),
        ),
        stat(
            "Held",
            "Workload-hours on GPUs in any state. Two workloads on one GPU for an hour are two, and so is one "
            "workload on two GPUs.",
            Unit.WORKLOAD_HOURS,
            Query("sum(increase(<gpu.workload.time>[$__range])) / 3600"),
        ),
        stat(
            "Used",
            "GPU-hours of work: the SM share summed over time. Not reported in MIG mode.",
            Unit.GPU_HOURS,
            Query("sum(increase(<gpu.workload.compute.time>[$__range])) / 3600"),
        ),
        stat(
            "Wasted",
            "Workload-hours with memory held without work, or with a granted GPU and no process on it. Three idle "
            "workloads on one GPU for an hour are three.",
            Unit.WORKLOAD_HOURS,
            Query('sum(increase(<gpu.workload.time>{<gpu.state>=~"idle|allocated"}[$__range])) / 3600'),
        ),
        stat(
            "Memory wasted",
            "Memory held by idle processes, multiplied by time.",
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
            "Time and energy at the prices of the agents (--price-gpu-hour, --price-kwh). Empty without prices.",
            Unit.NONE,
            Query("sum by (<gpu.cost.currency>) (increase(<gpu.workload.cost>[$__range]))", "{{<gpu.cost.currency>}}"),
        ),
        stat(
            "Cost of waste",
            "The part of the cost for idle time and for granted GPUs without a process.",
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
            "Memory, SM, power and idle time now, empty for ended workloads. Energy, hours on GPUs, GPU-hours of work"
            " and cost in the time range. Efficiency is work per time held, without MIG instances, where the driver "
            "does not report work. Idle for: without work on any of its GPUs. An empty cell means unknown, which is "
            "not zero.",
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
            "Memory by method",
            "Measured: the driver lists it. Inferred: the driver does not list it, with evidence for the workload.",
            Unit.BYTES,
            Query("sum by (<gpu.attribution.method>) (<gpu.workload.memory.usage>)", "{{<gpu.attribution.method>}}"),
            colors=METHOD_COLORS,
        ),
        stack(
            "Memory by workload",
            "Memory of each workload, measured and inferred.",
            Unit.BYTES,
            Query(each(_EVERY, "sum by () (<gpu.workload.memory.usage>) > 0"), _NAMED),
        ),
        stack(
            "Work",
            "GPU-seconds of work per second: the SM share. Not reported in MIG mode.",
            Unit.GPUS,
            Query(each(_EVERY, "sum by () (rate(<gpu.workload.compute.time>[$__rate_interval]))"), _NAMED),
        ),
        stack(
            "Workloads on GPUs by state",
            "Seconds on GPUs per second and by state. Two workloads on one GPU count as two. Unknown is not idle.",
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
            "Power by method",
            "Measured: one process alone on its GPU. Estimated: several processes, divided by work and presence. "
            "Inferred: a process that the driver does not list.",
            Unit.WATTS,
            Query(
                "sum by (<gpu.attribution.method>) (rate(<gpu.workload.energy>[$__rate_interval]))",
                "{{<gpu.attribution.method>}}",
            ),
            colors=METHOD_COLORS,
        ),
        stack(
            "Power by workload",
            "Power of the GPUs, divided among workloads.",
            Unit.WATTS,
            Query(each(_EVERY, "sum by () (rate(<gpu.workload.energy>[$__rate_interval]))"), _NAMED),
        ),
        stack(
            "Memory held by idle processes",
            "By workload. Empty if the state is unknown.",
            Unit.BYTES,
            Query(each(_EVERY, "sum by () (<gpu.workload.idle.memory>) > 0"), _NAMED),
            width=8,
        ),
        lines(
            "Idle for",
            "How long each workload has held memory without work on any of its GPUs: 0 while it works on one, no line"
            " while its state is unknown.",
            Unit.SECONDS,
            Query(each(_EVERY, "min by () (<gpu.workload.idle.duration>)"), _NAMED),
            width=8,
        ),
        stack(
            "Cost per hour",
            "Time and energy at the prices of the agents. Empty without prices.",
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
    "Namespaces and workloads: memory, work, energy, waste and cost.",
    '<host.name>=~"$host", <k8s.namespace.name>=~"$namespace", <gpu.workload.name>=~"$workload"',
    (_HOST, _NAMESPACE, _WORKLOAD),
    (_SUMS, _EACH, _USE, _ENERGY),
)
