"""All GPUs at once: how many, who has them, what they draw, which are idle, and which agents see nothing."""

from __future__ import annotations

from typing import Final

from tools.dashboards.model import Column, Dashboard, Query, Section, Unit
from tools.dashboards.panels import bars, lines, stack, stat, table
from tools.dashboards.shared import (
    ENERGY_COLORS,
    HOSTS,
    MEMORY_COLORS,
    STATE_COLORS,
    TO_NAMESPACE,
    TO_NODE,
    TO_WORKLOAD,
    each,
)

# Gauges of GPUs go through max by (hw_id) first: for some minutes after an agent was upgraded a GPU may have series of
# both versions. Counters do not: each of the two has its own part of the increase.

_NOW: Final = Section(
    "Now",
    (
        stat(
            "GPUs",
            "Physical GPUs that agents tell of, those without figures included.",
            Unit.NONE,
            Query("count(count by (<hw.id>) (<hw.status>))"),
        ),
        stat(
            "GPUs failed",
            "GPUs that do not answer: hw.state is failed. docs/faults.md has what to do.",
            Unit.NONE,
            Query('sum(max by (<hw.id>) (<hw.status>{<hw.state>="failed"}))'),
            alarm=1,
        ),
        stat(
            "GPUs nobody works on",
            "GPUs on which no process is busy and none undecided: empty, or everybody on them is idle. Under MIG the "
            "driver does not tell who works, and unknown is not idle.",
            Unit.NONE,
            Query(
                'count(sum by (<hw.id>) (<gpu.device.process.count>{<gpu.state>=~"busy|unknown"}) == 0) or vector(0)'
            ),
        ),
        stat(
            "Memory in use",
            "Used memory of all GPUs by their limits, without what drivers reserve.",
            Unit.RATIO,
            Query("sum(max by (<hw.id>) (<hw.gpu.memory.usage>)) / sum(max by (<hw.id>) (<hw.gpu.memory.limit>))"),
        ),
        stat(
            "Power",
            "What all GPUs draw, by their own sensors.",
            Unit.WATTS,
            Query("sum(max by (<hw.id>) (<hw.power>))"),
        ),
        stat(
            "Energy",
            "What all GPUs drew in the time range, by their energy counters; the integral of power where there is "
            "none.",
            Unit.KWH,
            Query("sum(increase(<hw.energy>[$__range])) / 3.6e6"),
        ),
        stat(
            "Agents",
            "Hosts whose agent tells something.",
            Unit.NONE,
            Query("count(count by (<host.name>) (<otel_gpu.series>))"),
        ),
        stat(
            "Agents blind or gone",
            "Blind: GPUs or processes cannot be read (nvml or procfs is unavailable) on a host that has had GPUs "
            "within a day, or processes are hidden from it and next to no used memory is anybody's. Gone: told "
            "something within the last day, and nothing now.",
            Unit.NONE,
            Query(
                'count((max by (<host.name>) (<otel_gpu.source.state>{<otel_gpu.source>=~"nvml|procfs", '
                '<otel_gpu.state>="unavailable"}) == 1 '
                "and on (<host.name>) group by (<host.name>) (last_over_time(<hw.status>[1d]))) "
                'or (max by (<host.name>) (<otel_gpu.source.state>{<otel_gpu.source>="procfs", '
                '<otel_gpu.state>="degraded"}) == 1 '
                "and on (<host.name>) max by (<host.name>) (<otel_gpu.attribution.coverage>) < 0.1 "
                "and on (<host.name>) sum by (<host.name>) "
                '(<gpu.device.memory.usage>{<gpu.memory.state>="unattributed"}) >= 67108864)) or vector(0)',
                "blind",
            ),
            Query(
                "count(count by (<host.name>) (last_over_time(<otel_gpu.series>[1d])) "
                "unless count by (<host.name>) (<otel_gpu.series>)) or vector(0)",
                "gone",
            ),
            alarm=1,
        ),
    ),
)

_TIME: Final = Section(
    "Over time",
    (
        stack(
            "Memory by state",
            "Measured: the driver's process lists. Inferred: used beyond these, where evidence points to somebody. "
            "Unattributed: used, and nothing points to anybody. The states sum to the GPUs' limits, to the byte.",
            Unit.BYTES,
            Query(
                "sum by (<gpu.memory.state>) "
                "(max by (<hw.id>, <gpu.mig.uuid>, <gpu.memory.state>) (<gpu.device.memory.usage>))",
                "{{<gpu.memory.state>}}",
            ),
            colors=MEMORY_COLORS,
        ),
        lines(
            "Utilisation",
            "Fraction of time in which a kernel ran, as each GPU tells: mean, median and 90th percentile over GPUs. "
            "GPUs under MIG do not tell.",
            Unit.RATIO,
            *(
                Query(f'{over} max by (<hw.id>) (<hw.gpu.utilization>{{<hw.gpu.task>="general"}}))', legend)
                for over, legend in (("avg(", "mean"), ("quantile(0.5,", "median"), ("quantile(0.9,", "90 %"))
            ),
            top=1,
        ),
        stack(
            "Power by where it goes",
            "Rate of the GPUs' energy counters. Attributed: given to workloads. Idle: nobody was on the GPU. "
            "Unattributed: nothing points to anybody. They sum to what the hardware counted, to the millijoule.",
            Unit.WATTS,
            Query(
                "sum by (<gpu.energy.state>) (rate(<gpu.device.energy>[$__rate_interval]))", "{{<gpu.energy.state>}}"
            ),
            colors=ENERGY_COLORS,
        ),
        stack(
            "Workloads on GPUs, by what they do",
            "Seconds that workloads were on GPUs, per second: two workloads on one GPU are two, and so is one on two. "
            "Idle: holds memory and showed no work. Allocated: was given the GPU and has no process there. Unknown is "
            "not idle.",
            Unit.WORKLOADS,
            Query("sum by (<gpu.state>) (rate(<gpu.workload.time>[$__rate_interval]))", "{{<gpu.state>}}"),
            colors=STATE_COLORS,
        ),
    ),
)

_WHO: Final = Section(
    "Who",
    (
        table(
            "Namespaces",
            "Energy and hours in the time range. Held: workload-hours on GPUs, whatever was done; two on one GPU for "
            "an hour are two. Used: GPU-hours, SM share summed over time. Under MIG drivers do not tell of it: hours "
            "held there, which have a column of their own, can be in Held only. The row without a name is what runs "
            "outside of Kubernetes.",
            (
                Column("k8s.namespace.name", "Namespace", link=TO_NAMESPACE),
                Column("A", "Power", Unit.WATTS),
                Column("B", "Energy", Unit.KWH),
                Column("C", "Held", Unit.WORKLOAD_HOURS),
                Column("D", "Held under MIG", Unit.WORKLOAD_HOURS),
                Column("E", "Used", Unit.GPU_HOURS),
                Column("F", "Idle memory", Unit.BYTES),
            ),
            Query("sum by (<k8s.namespace.name>) (rate(<gpu.workload.energy>[$__rate_interval]))"),
            Query("sum by (<k8s.namespace.name>) (increase(<gpu.workload.energy>[$__range])) / 3.6e6"),
            Query("sum by (<k8s.namespace.name>) (increase(<gpu.workload.time>[$__range])) / 3600"),
            Query('sum by (<k8s.namespace.name>) (increase(<gpu.workload.time>{<gpu.mig.uuid>!=""}[$__range])) / 3600'),
            Query("sum by (<k8s.namespace.name>) (increase(<gpu.workload.compute.time>[$__range])) / 3600"),
            Query("sum by (<k8s.namespace.name>) (<gpu.workload.idle.memory>)"),
        ),
        bars(
            "Who draws most",
            "The ten workloads with the most power: each one's part of its GPUs' energy counters.",
            Unit.WATTS,
            Query(
                "topk(10, sum by (<host.name>, <k8s.namespace.name>, <k8s.pod.name>, <gpu.workload.name>) "
                "(rate(<gpu.workload.energy>[$__rate_interval])))",
                "{{<host.name>}} {{<k8s.namespace.name>}} {{<k8s.pod.name>}} {{<gpu.workload.name>}}",
            ),
        ),
        table(
            "Who only holds memory",
            "Workloads that hold memory without any work, and for how long. Whether somebody works is decided over "
            "several samples; undecided is not idle.",
            (
                Column("host.name", "Host", link=TO_NODE),
                Column("gpu.index", "GPU"),
                Column("k8s.namespace.name", "Namespace", link=TO_NAMESPACE),
                Column("k8s.pod.name", "Pod"),
                Column("gpu.workload.name", "Workload", link=TO_WORKLOAD),
                Column("A", "Idle for", Unit.SECONDS),
                Column("B", "Memory", Unit.BYTES),
            ),
            *(
                Query(
                    each("<host.name>, <gpu.index>, <k8s.namespace.name>, <k8s.pod.name>, <gpu.workload.name>", figure)
                )
                for figure in (
                    "max by () (<gpu.workload.idle.duration>) > 0",
                    "sum by () (<gpu.workload.idle.memory>) > 0",
                )
            ),
        ),
        table(
            "GPUs that are not ok",
            "Which, where, and what they say of themselves. Failed: does not answer. Degraded: some figures are "
            "missing. Asleep and paused: left alone on purpose. docs/faults.md has what to do.",
            (
                Column("host.name", "Host", link=TO_NODE),
                Column("gpu.index", "GPU"),
                Column("hw.state", "State"),
                Column("hw.id", "UUID"),
                Column("A", "There"),
            ),
            Query(
                "max by (<host.name>, <gpu.index>, <hw.state>, <hw.id>) "
                '(<hw.status>{<hw.state>=~"failed|degraded|asleep|paused"}) == 1'
            ),
        ),
        table(
            "GPUs",
            "Each GPU as its driver tells. What a GPU does not tell is empty, which is not zero.",
            (
                Column("host.name", "Host", link=TO_NODE),
                Column("gpu.index", "GPU"),
                Column("A", "Memory", Unit.BYTES),
                Column("B", "Utilisation", Unit.RATIO),
                Column("C", "Power", Unit.WATTS),
                Column("D", "Temperature", Unit.CELSIUS),
                Column("hw.id", "UUID"),
            ),
            *(
                Query(f"max by (<host.name>, <hw.id>, <gpu.index>) ({gauge})")
                for gauge in (
                    "<hw.gpu.memory.usage>",
                    '<hw.gpu.utilization>{<hw.gpu.task>="general"}',
                    "<hw.power>",
                    "<hw.temperature>",
                )
            ),
        ),
    ),
)

FLEET: Final = Dashboard(
    "fleet",
    "GPU / Fleet",
    "All GPUs: who has them, what they draw, which are idle, and which agents see nothing.",
    '<host.name>=~"$host"',
    (HOSTS,),
    (_NOW, _TIME, _WHO),
)
