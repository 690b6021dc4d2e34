"""Every metric, declared once. Instruments, documentation and the checks of dashboards follow from this table.

Names and attributes of ``hw.*`` are those of OpenTelemetry's semantic conventions v1.44 for hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from types import MappingProxyType
from typing import Final

from otel_gpu.attribution.options import EnergyModel, EnergyPolicy
from otel_gpu.attribution.power.baseline import Origin
from otel_gpu.metrics.labels import DECLARED_KEYS
from otel_gpu.model import CostBasis, GpuHealth, GpuState, SourceState, UnreadableReason


class Kind(StrEnum):
    """The instrument. A gauge is not summed, a counter never falls, an updowncounter is summed and may fall."""

    GAUGE = "gauge"
    COUNTER = "counter"
    UPDOWNCOUNTER = "updowncounter"


class Level(StrEnum):
    """The subject of a metric. Metrics of workloads and processes are on the workload's Resource."""

    DEVICE = "device"
    WORKLOAD = "workload"
    PROCESS = "process"
    AGENT = "agent"


class Stability(StrEnum):
    """The stability of a name. A convention in development may still change; a name of ours changes with notice."""

    DEVELOPMENT = "development"
    ALPHA = "alpha"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A key on points, with one type everywhere. ``values`` are all its possible values, where they are known.

    It is on every point of its metrics unless ``optional``. No attribute is empty.
    """

    key: str
    type: type[str] | type[int] | type[bool]
    description: str
    values: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: one instrument, with one set of keys. ``unit`` is in UCUM.

    ``of_pod`` says whether an agent of a single pod exports it. Metrics of whole GPUs are not: every pod on a GPU would
    export the same value, and a sum over agents would count it once per pod.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: tuple[Attribute, ...]
    level: Level
    stability: Stability
    of_pod: bool

    @property
    def most_points(self) -> int:
        """The most points of one row: a GPU, or a workload or process on a device."""
        return prod(len(attribute.values) for attribute in self.attributes if attribute.values)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its points in order, including optional ones."""
        return tuple(attribute.key for attribute in self.attributes)


# ---------------------------------------------------------------------------- attributes

HW_ID: Final = Attribute("hw.id", str, "UUID of the physical GPU")
GPU_INDEX: Final = Attribute(
    "gpu.index", str, "index of the GPU, which may change when the driver is loaded again; absent if never read",
    optional=True,
)  # fmt: skip
MIG_UUID: Final = Attribute("gpu.mig.uuid", str, "UUID of the MIG instance; absent for the GPU itself", optional=True)
MIG_PROFILE: Final = Attribute(
    "gpu.mig.profile", str, "profile of the MIG instance, such as 1g.10gb; absent without one", optional=True
)
HW_NAME: Final = Attribute("hw.name", str, "name of the GPU, as the driver reports it", optional=True)
HW_MODEL: Final = Attribute("hw.model", str, "model of the GPU: its name without the vendor", optional=True)
HW_VENDOR: Final = Attribute("hw.vendor", str, "vendor of the GPU", ("NVIDIA",))
HW_TYPE: Final = Attribute("hw.type", str, "the type of hardware", ("gpu",))
HW_TASK: Final = Attribute("hw.gpu.task", str, "the task of the GPU", ("general", "encoder", "decoder"))
HW_STATE: Final = Attribute("hw.state", str, "a state the GPU may be in", tuple(GpuHealth))
ERROR_TYPE: Final = Attribute(
    "error.type",
    str,
    "ECC errors (corrected, uncorrected) or critical errors (xid)",
    ("corrected", "uncorrected", "xid"),
)
MEMORY_STATE: Final = Attribute(
    "gpu.memory.state", str, "how the memory is used", ("reserved", "measured", "inferred", "unattributed", "free")
)
ENERGY_STATE: Final = Attribute(
    "gpu.energy.state", str, "what became of the energy", ("attributed", "idle", "unattributed")
)
ENERGY_SOURCE: Final = Attribute(
    "source", str, "the energy counter of the hardware, or the integral of power", ("counter", "power")
)
ENERGY_POLICY: Final = Attribute(
    "policy", str, "how static energy, which the GPU uses even without work, is divided", tuple(EnergyPolicy)
)
ENERGY_MODEL: Final = Attribute("model", str, "how the rest, the energy of work, is divided", tuple(EnergyModel))
IDLE_ORIGIN: Final = Attribute(
    "gpu.energy.idle.origin", str, "how the power of the GPU without a process was determined", tuple(Origin)
)
HELD_ORIGIN: Final = Attribute(
    "gpu.energy.held.origin", str,
    "how the power of the GPU with processes that do no work (context power) was determined", tuple(Origin),
)  # fmt: skip
METHOD: Final = Attribute(
    "gpu.attribution.method", str, "how the value was determined", ("measured", "estimated", "inferred")
)
MEMORY_METHOD: Final = Attribute(
    "gpu.attribution.method", str, "how the value was determined", ("measured", "inferred")
)
LISTED_METHOD: Final = Attribute("gpu.attribution.method", str, "how the value was determined", ("measured",))
STATE: Final = Attribute("gpu.state", str, "what the workload or process does with the GPU", tuple(GpuState))
PROCESS_STATE: Final = Attribute(
    "gpu.state", str, "what the workload or process does with the GPU", ("busy", "idle", "unknown")
)
COST_BASIS: Final = Attribute("gpu.cost.basis", str, "what is billed: time on the GPU, or energy", tuple(CostBasis))
CURRENCY: Final = Attribute("gpu.cost.currency", str, "currency of the configured prices")
PID: Final = Attribute("process.pid", int, "pid of the process on the host")
EXECUTABLE: Final = Attribute(
    "process.executable.name",
    str,
    "name of the process when first seen; absent if /proc never showed it",
    optional=True,
)
OVERFLOW: Final = Attribute(
    "otel.metric.overflow",
    bool,
    "true on the entry that processes or workloads beyond the limit share; absent elsewhere",
    optional=True,
)
SOURCE: Final = Attribute("otel_gpu.source", str, "the source that the agent reads: nvml, procfs, …")
SERIES_KIND: Final = Attribute(
    "otel_gpu.series.kind", str, "the kind of series: only those of processes are left out", ("process",)
)
SOURCE_STATE: Final = Attribute("otel_gpu.state", str, "a state the source may be in", tuple(SourceState))
UNREADABLE_REASON: Final = Attribute(
    "otel_gpu.reason", str, "why a process could not be read, or not in full", tuple(UnreadableReason)
)

DECLARED: Final = tuple(
    Attribute(key, str, f"{what} of the Slurm job, as the job states it in its environment", optional=True)
    for key, what in zip(DECLARED_KEYS, ("name", "user", "account", "partition"), strict=True)
)

_GPU: Final = (HW_ID, GPU_INDEX)
_PLACE: Final = (*_GPU, MIG_UUID, MIG_PROFILE)
_TYPED: Final = (*_GPU, HW_TYPE)
_NAMED: Final = (*_GPU, HW_NAME, HW_MODEL, HW_VENDOR)


# ---------------------------------------------------------------------------- the table


def _hardware(name: str, kind: Kind, unit: str, description: str, attributes: tuple[Attribute, ...]) -> Metric:
    return Metric(name, kind, unit, description, attributes, Level.DEVICE, Stability.DEVELOPMENT, of_pod=False)


def _device(name: str, kind: Kind, unit: str, description: str, *own: Attribute) -> Metric:
    return Metric(name, kind, unit, description, (*_PLACE, *own), Level.DEVICE, Stability.ALPHA, of_pod=False)


def _workload(name: str, kind: Kind, unit: str, description: str, *own: Attribute) -> Metric:
    attributes = (*_PLACE, OVERFLOW, *own)
    return Metric(name, kind, unit, description, attributes, Level.WORKLOAD, Stability.ALPHA, of_pod=True)


def _process(name: str, kind: Kind, unit: str, description: str, *own: Attribute) -> Metric:
    attributes = (*_PLACE, PID, EXECUTABLE, OVERFLOW, *own)
    return Metric(name, kind, unit, description, attributes, Level.PROCESS, Stability.ALPHA, of_pod=True)


def _agent(name: str, kind: Kind, unit: str, description: str, *own: Attribute) -> Metric:
    return Metric(name, kind, unit, description, own, Level.AGENT, Stability.ALPHA, of_pod=True)


def _explained(name: str, kind: Kind, unit: str, description: str) -> Metric:
    """A metric of how much of a GPU the agent explains."""
    return Metric(name, kind, unit, description, _GPU, Level.AGENT, Stability.ALPHA, of_pod=False)


_GAUGE, _COUNTER, _UPDOWN = Kind.GAUGE, Kind.COUNTER, Kind.UPDOWNCOUNTER

METRICS: Final[tuple[Metric, ...]] = (
    _hardware("hw.gpu.memory.limit", _UPDOWN, "By", "Size of the GPU memory.", _NAMED),
    _hardware("hw.gpu.memory.usage", _UPDOWN, "By", "GPU memory used, without what the driver reserves.", _NAMED),
    _hardware("hw.gpu.memory.utilization", _GAUGE, "1", "Fraction of GPU memory used.", _GPU),
    _hardware("hw.gpu.utilization", _GAUGE, "1", "Fraction of time spent in a specific task.", (*_GPU, HW_TASK)),
    _hardware("hw.power", _GAUGE, "W", "Power drawn by the GPU.", _TYPED),
    _hardware("hw.energy", _COUNTER, "J", "Energy consumed by the GPU, across resets of the hardware counter.", _TYPED),
    _hardware("hw.temperature", _GAUGE, "Cel", "Temperature of the GPU.", _GPU),
    _hardware(
        "hw.errors", _COUNTER, "{error}",
        "Errors of the GPU: ECC errors over the life of the board, XID errors since the agent first saw the GPU.",
        (*_TYPED, ERROR_TYPE),
    ),
    _hardware(
        "hw.status", _UPDOWN, "1", "Operational status: 1 (true) or 0 (false) for each of the possible states.",
        (*_TYPED, HW_STATE),
    ),
    _device(
        "gpu.device.memory.usage", _UPDOWN, "By",
        "GPU memory by state; the states of a GPU sum to its limit.", MEMORY_STATE,
    ),
    _device(
        "gpu.device.memory.overcount", _UPDOWN, "By",
        "Memory that the driver's process lists claim beyond what is used (read skew, shared memory).",
    ),
    _device(
        "gpu.device.energy", _COUNTER, "J", "GPU energy by state; the states sum to hw.energy.", ENERGY_STATE
    ),
    _device(
        "gpu.device.energy.info", _UPDOWN, "1", "How the energy is divided, as attributes. Always 1.",
        ENERGY_SOURCE, ENERGY_POLICY, ENERGY_MODEL, IDLE_ORIGIN, HELD_ORIGIN,
    ),
    _device("gpu.device.idle.memory", _UPDOWN, "By", "GPU memory held by processes that are idle."),
    _device(
        "gpu.device.process.count", _UPDOWN, "{process}", "Processes on the GPU by state.", PROCESS_STATE
    ),
    _workload(
        "gpu.workload.memory.usage", _UPDOWN, "By", "GPU memory that the workload holds, by method.",
        MEMORY_METHOD,
    ),
    _workload(
        "gpu.workload.memory.confidence", _GAUGE, "1",
        "Confidence of the inferred memory, from 0 to 1; only where memory may be inferred.",
    ),
    _workload("gpu.workload.utilization", _GAUGE, "1", "The workload's share of SM time, in the last window."),
    _workload(
        "gpu.workload.memory.bandwidth.utilization", _GAUGE, "1",
        "Fraction of the last window in which the workload read or wrote GPU memory.",
    ),
    _workload("gpu.workload.compute.time", _COUNTER, "s", "GPU-seconds of work: SM share, summed over time."),
    _workload("gpu.workload.energy", _COUNTER, "J", "Energy of the workload, by method.", METHOD),
    _workload("gpu.workload.time", _COUNTER, "s", "Time the workload was on the GPU, by state.", STATE),
    _workload(
        "gpu.workload.idle.duration", _GAUGE, "s",
        "How long the workload has held memory without work: 0 while it works, absent if unknown.",
    ),
    _workload("gpu.workload.idle.memory", _UPDOWN, "By", "GPU memory held by the workload while it is idle."),
    _workload(
        "gpu.workload.idle.memory.time", _COUNTER, "{By.s}",
        "Memory held while idle, summed over time, in byte-seconds.",
    ),
    _workload("gpu.workload.idle.energy", _COUNTER, "J", "Energy of the workload while it was idle."),
    _workload(
        "gpu.workload.access", _UPDOWN, "1",
        "1 while the workload was granted the GPU, has it open or could open it, else 0.",
    ),
    _workload(
        "gpu.workload.allocation", _UPDOWN, "{gpu}",
        "GPUs granted: 1 if exclusive, 1/replicas if time-sliced, the fraction of SMs for a MIG instance.",
    ),
    _workload(
        "gpu.workload.cost", _COUNTER, "{currency}", "Cost of the workload's use; only with prices configured.",
        STATE, COST_BASIS, CURRENCY,
    ),
    _workload(
        "gpu.workload.info", _UPDOWN, "1",
        "What is known of the workload: its identity, and what it says of itself. Always 1.", *DECLARED,
    ),
    _process(
        "gpu.process.memory.usage", _UPDOWN, "By", "GPU memory that the process holds, as the driver lists it.",
        LISTED_METHOD,
    ),
    _process("gpu.process.utilization", _GAUGE, "1", "The process's share of SM time, in the last window."),
    _process(
        "gpu.process.memory.bandwidth.utilization", _GAUGE, "1",
        "Fraction of the last window in which the process read or wrote GPU memory.",
    ),
    _process("gpu.process.compute.time", _COUNTER, "s", "GPU-seconds of work: SM share, summed over time."),
    _process("gpu.process.energy", _COUNTER, "J", "Energy of the process, by method.", METHOD),
    _process(
        "gpu.process.idle.duration", _GAUGE, "s",
        "How long the process has held memory without work: 0 while it works, absent if unknown.",
    ),
    _process("gpu.process.idle.memory", _UPDOWN, "By", "GPU memory held while idle."),
    _process("gpu.process.start_time", _GAUGE, "s", "When the process started, in Unix time."),
    _process("gpu.process.active", _UPDOWN, "1", "1 while the process is on the GPU, 0 once it has left."),
    _agent("otel_gpu.up", _UPDOWN, "1", "1 if the source answered in the last cycle, else 0.", SOURCE),
    _agent(
        "otel_gpu.source.state", _UPDOWN, "1", "State of the source: 1 (true) or 0 (false) for each possible state.",
        SOURCE, SOURCE_STATE,
    ),
    _agent("otel_gpu.collection.duration", _GAUGE, "s", "How long reading the source took in the last cycle.", SOURCE),
    _agent("otel_gpu.source.errors", _COUNTER, "{error}", "Errors while reading the source.", SOURCE),
    _agent(
        "otel_gpu.process.unreadable", _UPDOWN, "{process}",
        "Processes that could not be read, or not in full, in the last cycle, by reason.", UNREADABLE_REASON,
    ),
    _explained("otel_gpu.attribution.coverage", _GAUGE, "1", "Fraction of used GPU memory that is attributed."),
    _explained(
        "otel_gpu.conservation.memory.error", _GAUGE, "By",
        "Difference between the memory states and the limit; other than 0 is a bug.",
    ),
    _explained(
        "otel_gpu.conservation.energy.error", _GAUGE, "J",
        "Difference between attributed energy and the GPU's; other than 0 is a bug.",
    ),
    _agent("otel_gpu.cpu.time", _COUNTER, "s", "CPU time of the agent."),
    _agent("otel_gpu.memory.usage", _UPDOWN, "By", "Resident memory of the agent."),
    _agent(
        "otel_gpu.series.dropped", _UPDOWN, "{series}",
        "Series that this collection leaves out because it would have too many, by kind.", SERIES_KIND,
    ),
    # Last: it counts the series of all others.
    _agent("otel_gpu.series", _UPDOWN, "{series}", "Series in this collection, this one included."),
)  # fmt: skip

BY_NAME: Final[Mapping[str, Metric]] = MappingProxyType({metric.name: metric for metric in METRICS})
