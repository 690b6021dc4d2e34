"""Points of the agent itself: its sources, how well it explains what it sees, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from otel_gpu.metrics.columns import OfDevices, plain
from otel_gpu.metrics.points_reading import NONE, Device, Reading
from otel_gpu.metrics.series import Point
from otel_gpu.model import SourceState

_SERIES: Final = "otel_gpu.series"
ATTRIBUTION: Final = "attribution"
"""The source whose errors are figures that cannot be true: a counter that fell, more energy than a GPU can draw."""

_STATES: Final = tuple((state, state.value) for state in SourceState)


def _up(reading: Reading) -> Iterator[Point]:
    for source in reading.attribution.sources:
        yield Point(int(source.state.answers), reading.agent.adding({"otel_gpu.source": source.name}))


def _state(reading: Reading) -> Iterator[Point]:
    for source in reading.attribution.sources:
        for state, value in _STATES:
            own = {"otel_gpu.source": source.name, "otel_gpu.state": value}
            yield Point(int(source.state is state), reading.agent.adding(own))


def _duration(reading: Reading) -> Iterator[Point]:
    for source in reading.attribution.sources:
        yield Point(source.duration_s, reading.agent.adding({"otel_gpu.source": source.name}))


def _errors(reading: Reading) -> Iterator[Point]:
    for name, errors in reading.stats.source_errors.items():
        yield Point(errors, reading.agent.adding({"otel_gpu.source": name}), start_ns=reading.stats.started_ns)
    attribution = reading.attribution
    own = reading.agent.adding({"otel_gpu.source": ATTRIBUTION})
    yield Point(attribution.anomalies, own, start_ns=attribution.epoch_ns)


def _coverage(device: Device) -> tuple[float | None]:
    split = device.gpu.memory
    if split is None:
        return (None,)
    somebodys = split.measured_bytes - split.overcount_bytes + split.inferred_bytes
    used = somebodys + split.unattributed_bytes
    return (somebodys / used if used else None,)


def _memory_error(device: Device) -> tuple[float | None]:
    split = device.gpu.memory
    return (None if split is None else split.conservation_error_bytes,)


def _energy_error(device: Device) -> tuple[float | None]:
    return (device.gpu.energy_error_mj / 1e3 if device.tells_energy else None,)


EXPLAINED_VALUES: Final[Mapping[str, OfDevices]] = MappingProxyType(
    {
        "otel_gpu.attribution.coverage": OfDevices(_coverage, plain),
        "otel_gpu.conservation.memory.error": OfDevices(_memory_error, plain),
        "otel_gpu.conservation.energy.error": OfDevices(_energy_error, plain),
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
        "otel_gpu.up": _up,
        "otel_gpu.source.state": _state,
        "otel_gpu.collection.duration": _duration,
        "otel_gpu.source.errors": _errors,
        "otel_gpu.cpu.time": _cpu_time,
        "otel_gpu.memory.usage": _memory,
    }
)


def agent_points(name: str, reading: Reading, before: int) -> Iterable[Point]:
    """The points of a metric of the agent, in a collection that has ``before`` points so far."""
    return (Point(before + 1, NONE),) if name == _SERIES else _OF[name](reading)
