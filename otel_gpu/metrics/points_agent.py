"""Points of the agent itself: its sources, how well it explains what it sees, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from otel_gpu.metrics.columns import Devices, OfDevices, OfSources, plain
from otel_gpu.metrics.points_reading import NONE, Reading
from otel_gpu.metrics.points_use import PER_JOULE, Values
from otel_gpu.metrics.series import Point
from otel_gpu.model import MemorySplit, SourceOutcome, SourceState

_SERIES: Final = "otel_gpu.series"
ATTRIBUTION: Final = "attribution"
"""The source whose errors are figures that cannot be true: a counter that fell, more energy than a GPU can draw."""

_STATES: Final = tuple(SourceState)


def _up(sources: Sequence[SourceOutcome]) -> Values:
    return [int(source.state.answers) for source in sources]


def _state(sources: Sequence[SourceOutcome]) -> Values:
    return [int(source.state is state) for source in sources for state in _STATES]


def _duration(sources: Sequence[SourceOutcome]) -> Values:
    return [source.duration_s for source in sources]


SOURCE_VALUES: Final[Mapping[str, OfSources]] = MappingProxyType(
    {
        "otel_gpu.up": OfSources(_up),
        "otel_gpu.source.state": OfSources(_state, tuple({"otel_gpu.state": state.value} for state in _STATES)),
        "otel_gpu.collection.duration": OfSources(_duration),
    }
)


def _errors(reading: Reading) -> Iterator[Point]:
    for name, errors in reading.stats.source_errors.items():
        yield Point(errors, reading.agent.adding({"otel_gpu.source": name}), start_ns=reading.stats.started_ns)
    attribution = reading.attribution
    own = reading.agent.adding({"otel_gpu.source": ATTRIBUTION})
    yield Point(attribution.anomalies, own, start_ns=attribution.epoch_ns)


def _coverage(devices: Devices) -> Values:
    return [_explained(split) for split in [device.gpu.memory for device in devices]]


def _explained(split: MemorySplit | None) -> float | None:
    """The part of what is used that is somebody's."""
    if split is None:
        return None
    somebodys = split.measured_bytes - split.overcount_bytes + split.inferred_bytes
    used = somebodys + split.unattributed_bytes
    return somebodys / used if used else None


def _memory_error(devices: Devices) -> Values:
    splits = [device.gpu.memory for device in devices]
    return [None if split is None else split.conservation_error_bytes for split in splits]


def _energy_error_mj(devices: Devices) -> Values:
    return [device.gpu.energy_error_mj if device.tells_energy else None for device in devices]


EXPLAINED_VALUES: Final[Mapping[str, OfDevices]] = MappingProxyType(
    {
        "otel_gpu.attribution.coverage": OfDevices(_coverage, plain),
        "otel_gpu.conservation.memory.error": OfDevices(_memory_error, plain),
        "otel_gpu.conservation.energy.error": OfDevices(_energy_error_mj, plain, per=PER_JOULE),
    }
)


def _cpu_time(reading: Reading) -> Iterator[Point]:
    if reading.stats.cpu_s is not None:
        yield Point(reading.stats.cpu_s, NONE, start_ns=reading.stats.started_ns)


def _memory(reading: Reading) -> Iterator[Point]:
    if reading.stats.memory_bytes is not None:
        yield Point(reading.stats.memory_bytes, NONE)


_OF: Final[Mapping[str, Callable[[Reading], Iterator[Point]]]] = MappingProxyType(
    {
        "otel_gpu.source.errors": _errors,
        "otel_gpu.cpu.time": _cpu_time,
        "otel_gpu.memory.usage": _memory,
    }
)


def agent_points(name: str, reading: Reading, before: int) -> Iterable[Point]:
    """The points of a metric of the agent, in a collection that has ``before`` points so far."""
    return (Point(before + 1, NONE),) if name == _SERIES else _OF[name](reading)
