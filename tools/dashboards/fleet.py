"""All GPUs: their users, power and idle time, and agents without data."""

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

# Gauges of GPUs are aggregated with max by (hw_id) first: for some minutes after an upgrade of the agent a GPU may have
# series of two versions. Counters are not: each series has its own part of the increase.

_NOW: Final = Section(
    "Now",
    (
        stat(
            "GPUs",
            "Physical GPUs that agents report, including those without figures.",
            Unit.NONE,
            Query("count(count by (<hw.id>) (<hw.status>))"),
        ),
        stat(
            "GPUs failed",
            "GPUs that do not respond (hw.state is failed). See docs/faults.md.",
            Unit.NONE,
            Query('sum(max by (<hw.id>) (<hw.status>{<hw.state>="failed"}))'),
            alarm=1,
        ),
        stat(
            "Idle GPUs",
            "GPUs without a busy or undecided process: empty, or with idle processes only. In MIG mode the driver "
            "does not report work, and unknown is not idle.",
            Unit.NONE,
            Query(
                'count(sum by (<hw.id>) (<gpu.device.process.count>{<gpu.state>=~"busy|unknown"}) == 0) or vector(0)'
            ),
        ),
        stat(
            "Memory in use",
            "Used memory of all GPUs divided by their limits, without memory that the driver reserves.",
            Unit.RATIO,
            Query("sum(max by (<hw.id>) (<hw.gpu.memory.usage>)) / sum(max by (<hw.id>) (<hw.gpu.memory.limit>))"),
        ),
        stat(
            "Power",
            "Power of all GPUs, from their own sensors.",
            Unit.WATTS,
            Query("sum(max by (<hw.id>) (<hw.power>))"),
        ),
        stat(
            "Energy",
            "Energy of all GPUs in the time range, from their energy counters, or from power over time where there is"
            " no counter.",
            Unit.KWH,
            Query("sum(increase(<hw.energy>[$__range])) / 3.6e6"),
        ),
        stat(
            "Agents",
            "Hosts with an agent that sends metrics.",
            Unit.NONE,
            Query("count(count by (<host.name>) (<otel_gpu.series>))"),
        ),
        stat(
            "Agents blind or gone",
            "Blind: the agent cannot read GPUs or processes (nvml or procfs is unavailable) on a host that has had "
            "GPUs within a day, or processes are hidden from it and almost no used memory is attributed. Gone: the "
            "agent sent metrics within the last day and sends none now.",
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
            "Measured: by the driver's process lists. Inferred: used beyond these lists, with evidence for a "
            "workload. Unattributed: used, without evidence. The states sum exactly to the limit of the GPUs.",
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
            "Fraction of time in which a kernel ran, as reported by each GPU: mean, median and 90th percentile over "
            "GPUs. GPUs in MIG mode do not report it.",
            Unit.RATIO,
            *(
                Query(f'{over} max by (<hw.id>) (<hw.gpu.utilization>{{<hw.gpu.task>="general"}}))', legend)
                for over, legend in (("avg(", "mean"), ("quantile(0.5,", "median"), ("quantile(0.9,", "90 %"))
            ),
            top=1,
        ),
        stack(
            "Power by attribution state",
            "Rate of the energy counters of the GPUs. Attributed: used by workloads. Idle: no process was on the GPU."
            " Unattributed: no evidence for a workload. The states sum exactly to what the hardware counted.",
            Unit.WATTS,
            Query(
                "sum by (<gpu.energy.state>) (rate(<gpu.device.energy>[$__rate_interval]))", "{{<gpu.energy.state>}}"
            ),
            colors=ENERGY_COLORS,
        ),
        stack(
            "Workloads on GPUs by state",
            "Seconds that workloads were on GPUs, per second. Two workloads on one GPU count as two, and so does one "
            "workload on two GPUs. Idle: holds memory and did no work. Allocated: has a granted GPU and no process on"
            " it. Unknown is not idle.",
            Unit.WORKLOADS,
            Query("sum by (<gpu.state>) (rate(<gpu.workload.time>[$__rate_interval]))", "{{<gpu.state>}}"),
            colors=STATE_COLORS,
        ),
    ),
)

_WHO: Final = Section(
    "Users",
    (
        table(
            "Namespaces",
            "Energy and hours in the time range. Held: workload-hours on GPUs in any state; two workloads on one GPU "
            "for an hour are two. Used: GPU-hours, the SM share summed over time. In MIG mode the driver does not "
            "report work, so hours held there count in Held and in a column of their own. The row without a name is "
            "for workloads outside Kubernetes.",
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
            "Highest power",
            "The ten workloads with the highest power, each with its part of the power of its GPUs.",
            Unit.WATTS,
            Query(
                "topk(10, sum by (<host.name>, <k8s.namespace.name>, <k8s.pod.name>, <gpu.workload.name>) "
                "(rate(<gpu.workload.energy>[$__rate_interval])))",
                "{{<host.name>}} {{<k8s.namespace.name>}} {{<k8s.pod.name>}} {{<gpu.workload.name>}}",
            ),
        ),
        table(
            "Idle workloads",
            "Workloads that hold memory without work, and for how long. The state is decided over several samples; "
            "undecided is not idle.",
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
            "Failed: the GPU does not respond. Degraded: some figures are missing. Asleep and paused: the agent does "
            "not read it, on purpose. See docs/faults.md.",
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
            "Figures of each GPU from its driver. An empty cell means unknown, which is not zero.",
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
    "All GPUs: their users, power and idle time, and agents without data.",
    '<host.name>=~"$host"',
    (HOSTS,),
    (_NOW, _TIME, _WHO),
)
