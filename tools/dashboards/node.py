"""One host, GPU by GPU: memory, work, power, temperature, and workloads."""

from __future__ import annotations

from typing import Final

from tools.dashboards.model import Column, Dashboard, Query, Section, Unit, Variable
from tools.dashboards.panels import lines, stack, stat, table
from tools.dashboards.shared import HERE, MEMORY_COLORS, STATE_COLORS, TO_NAMESPACE, TO_WORKLOAD, each

_HOST: Final = Variable("host", "Host", "<otel_gpu.series>", "host.name", several=False)
_GPU: Final = Variable("gpu", "GPU", '<hw.status>{<host.name>="$host"}', "gpu.index")

_WORKLOAD: Final = "<k8s.namespace.name>, <k8s.pod.name>, <gpu.workload.name>"
_NAMED: Final = "{{<k8s.namespace.name>}} {{<k8s.pod.name>}} {{<gpu.workload.name>}}"

_WHOLE: Final = Section(
    "$host",
    (
        stat(
            "GPUs by state",
            "Degraded: some figures are missing. Failed: the GPU does not respond. Asleep and paused: the agent does "
            "not read it, on purpose.",
            Unit.NONE,
            Query("sum by (<hw.state>) (max by (<hw.id>, <hw.state>) (<hw.status>))", "{{<hw.state>}}"),
            width=8,
        ),
        stat(
            "Power",
            "Power of the GPUs, from their own sensors.",
            Unit.WATTS,
            Query("sum(max by (<hw.id>) (<hw.power>))"),
            width=4,
        ),
        stat(
            "Energy",
            "Energy of the GPUs in the time range, from their energy counters, or from power over time where there is"
            " no counter.",
            Unit.KWH,
            Query("sum(increase(<hw.energy>[$__range])) / 3.6e6"),
            width=4,
        ),
        stat(
            "Processes",
            "Processes on the GPUs by state. Unknown is not idle.",
            Unit.NONE,
            Query("sum by (<gpu.state>) (<gpu.device.process.count>)", "{{<gpu.state>}}"),
            width=8,
        ),
        table(
            "State of each GPU",
            "The state of each GPU, including those without figures. See docs/faults.md.",
            (
                Column("gpu.index", "GPU"),
                Column("hw.state", "State"),
                Column("hw.id", "UUID"),
                Column("A", "There"),
            ),
            Query("max by (<gpu.index>, <hw.state>, <hw.id>) (<hw.status>) == 1"),
            width=24,
        ),
        table(
            "Workloads",
            "Workloads that are on these GPUs now, or have one granted. Power is their part of the energy counter of "
            "the GPU. SM is their share of the GPU's work; it is empty where the driver does not report it (MIG).",
            (
                Column("gpu.index", "GPU"),
                Column("gpu.mig.profile", "Instance"),
                Column("k8s.namespace.name", "Namespace", link=TO_NAMESPACE),
                Column("k8s.pod.name", "Pod"),
                Column("gpu.workload.name", "Workload", link=TO_WORKLOAD),
                Column("gpu.workload.kind", "Kind"),
                Column("A", "Memory", Unit.BYTES),
                Column("B", "SM", Unit.RATIO),
                Column("C", "Power", Unit.WATTS),
                Column("D", "Idle for", Unit.SECONDS),
            ),
            *(
                Query(each(f"<gpu.index>, <gpu.mig.profile>, <gpu.workload.kind>, {_WORKLOAD}", figure + HERE))
                for figure in (
                    "sum by () (<gpu.workload.memory.usage>)",
                    "sum by () (<gpu.workload.utilization>)",
                    "sum by () (rate(<gpu.workload.energy>[$__rate_interval]))",
                    "min by () (<gpu.workload.idle.duration>)",
                )
            ),
            width=24,
        ),
    ),
)

_EACH: Final = Section(
    "GPU $gpu",
    (
        stack(
            "Memory by state",
            "Measured: by the driver's process lists. Inferred: used beyond these lists, with evidence for a "
            "workload. Unattributed: used, without evidence. The states sum exactly to the limit of the GPU.",
            Unit.BYTES,
            Query(
                "sum by (<gpu.memory.state>) "
                "(max by (<hw.id>, <gpu.mig.uuid>, <gpu.memory.state>) (<gpu.device.memory.usage>))",
                "{{<gpu.memory.state>}}",
            ),
            width=8,
            colors=MEMORY_COLORS,
        ),
        stack(
            "Memory by workload",
            "Memory of each workload, measured and inferred.",
            Unit.BYTES,
            Query(each(_WORKLOAD, "sum by () (<gpu.workload.memory.usage>) > 0"), _NAMED),
            width=8,
        ),
        stack(
            "Power by workload",
            "The power of the GPU, divided among workloads, idle and unattributed power. Measured if one process was "
            "alone, else estimated by work and presence.",
            Unit.WATTS,
            Query(each(_WORKLOAD, "sum by () (rate(<gpu.workload.energy>[$__rate_interval]))"), _NAMED),
            Query(
                "sum by (<gpu.energy.state>) "
                '(rate(<gpu.device.energy>{<gpu.energy.state>=~"idle|unattributed"}[$__rate_interval]))',
                "({{<gpu.energy.state>}})",
            ),
            width=8,
        ),
        lines(
            "Utilisation",
            "Fraction of time in which the GPU worked, as it reports itself: kernels, encoder, decoder. Kernels are "
            "not reported in MIG mode.",
            Unit.RATIO,
            Query("max by (<hw.gpu.task>) (<hw.gpu.utilization>)", "{{<hw.gpu.task>}}"),
            width=6,
            top=1,
        ),
        stack(
            "Work by workload",
            "GPU-seconds of work per second: the SM share of each workload. Not reported in MIG mode.",
            Unit.RATIO,
            Query(each(_WORKLOAD, "sum by () (rate(<gpu.workload.compute.time>[$__rate_interval]))"), _NAMED),
            width=6,
        ),
        lines(
            "Temperature",
            "Temperature of the GPU, from its own sensor. The line is the threshold of the alert GpuHot.",
            Unit.CELSIUS,
            Query("max by (<gpu.index>) (<hw.temperature>)", "GPU {{<gpu.index>}}"),
            width=6,
            alarm=85,
        ),
        stack(
            "Workloads by state",
            "Seconds that workloads were on the GPU, per second and by state. Two workloads count as two.",
            Unit.WORKLOADS,
            Query("sum by (<gpu.state>) (rate(<gpu.workload.time>[$__rate_interval]))", "{{<gpu.state>}}"),
            width=6,
            colors=STATE_COLORS,
        ),
    ),
    repeat="gpu",
)

_ERRORS: Final = Section(
    "Errors",
    (
        lines(
            "Errors",
            "Increase of each error counter within a step of the plot: corrected and uncorrected ECC errors, and "
            "critical errors (XID).",
            Unit.COUNT,
            Query(
                "sum by (<gpu.index>, <error.type>) (increase(<hw.errors>[$__rate_interval]))",
                "GPU {{<gpu.index>}} {{<error.type>}}",
            ),
            width=24,
        ),
    ),
)

NODE: Final = Dashboard(
    "node",
    "GPU / Node",
    "One host, GPU by GPU: memory, work, power, temperature, and workloads.",
    '<host.name>="$host", <gpu.index>=~"$gpu"',
    (_HOST, _GPU),
    (_WHOLE, _EACH, _ERRORS),
)
