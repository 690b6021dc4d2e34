"""Queries of one device: slow figures are cached, unsupported ones are not repeated, errors are collected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from otel_gpu.errors import NoValue, Unavailable, Unsupported
from otel_gpu.model import DeviceMemory, ListedProcess, ProcessKind
from otel_gpu.sources.nvml.api import Handle, NvmlApi
from otel_gpu.sources.nvml.buffers import ListBuffer, memory_buffer
from otel_gpu.sources.nvml.errors import DeviceFailed, DriverFailed, NoAccess

T = TypeVar("T")

_SLACK_NS: Final = 500_000_000
"""A figure may be read this much before it is due: reads are not on time to the millisecond."""


class DeviceQueries:
    """Queries of one device. Unsupported figures are not read again until NVML is initialised again."""

    def __init__(self) -> None:
        self._unsupported: set[str] = set()
        self._now_ns = 0
        self._cache: dict[str, tuple[int, Any]] = {}
        self._memory = memory_buffer()
        self._lists: list[tuple[str, ProcessKind, ListBuffer[tuple[ListedProcess, ...]]]] = []
        self._missing: dict[str, list[str]] = {}
        self._any_answer = False
        self._no_access: NoAccess | None = None

    def begin(self, now_ns: int) -> None:
        """Start a new read at this monotonic time."""
        self._now_ns = now_ns
        self._missing = {}
        self._any_answer = False
        self._no_access = None

    @property
    def now_ns(self) -> int:
        """Start of this read, monotonic."""
        return self._now_ns

    def reset(self) -> None:
        """Forget cached and unsupported figures, for example after a change of the MIG mode."""
        self._unsupported.clear()
        self._cache.clear()

    def expire(self, figure: str) -> None:
        """Drop a cached figure."""
        self._cache.pop(figure, None)

    def check_access(self) -> None:
        """Raise NoAccess if this read had no answer at all and an unknown error."""
        if self._no_access is not None and not self._any_answer:
            raise self._no_access

    @property
    def missing(self) -> str | None:
        """The figures that failed in this read, grouped by reason."""
        if not self._missing:
            return None
        reasons = (f"{', '.join(figures)}: {error}" for error, figures in self._missing.items())
        return "; ".join(reasons) or None

    def add_missing(self, figure: str, error: object) -> None:
        """Record that a figure failed in this read."""
        self._missing.setdefault(str(error), []).append(figure)

    def supports(self, figure: str) -> bool:
        """False once the device has refused this figure as unsupported."""
        return figure not in self._unsupported

    def query(self, figure: str, function: Callable[..., T], *arguments: Any, every_s: float = 0.0) -> T | None:
        """The figure; ``None`` if it is unsupported or failed in this read. A failed device raises.

        With ``every_s`` an answer is cached for this time.
        """
        if figure in self._unsupported:
            return None
        if every_s and (cached := self._cache.get(figure)) is not None and self._now_ns < cached[0]:
            return cached[1]  # type: ignore[no-any-return]  # the result of the same function
        try:
            answer = function(*arguments)
        except Unsupported:
            self._unsupported.add(figure)
        except NoValue:
            self._any_answer = True
        except (DeviceFailed, DriverFailed):
            raise
        except Unavailable as error:
            if isinstance(error, NoAccess):
                self._no_access = error
            self.add_missing(figure, error)
        else:
            self._any_answer = True
            if every_s:
                self._cache[figure] = self._now_ns + round(every_s * 1e9) - _SLACK_NS, answer
            return answer
        return None

    def memory(self, api: NvmlApi, handle: Handle) -> DeviceMemory | None:
        """Device memory, with reserved memory if the driver reports it."""
        found = self.query("memory v2", api.memory, handle, self._memory)
        if found is not None or self.supports("memory v2"):
            return found
        return self.query("memory v1", api.memory_v1, handle)

    def temperature_c(self, api: NvmlApi, handle: Handle, *, every_s: float) -> float | None:
        """Core temperature, by the call that the driver supports."""
        found = self.query("temperature", api.temperature_c, handle, every_s=every_s)
        if found is not None or self.supports("temperature"):
            return found
        return self.query("temperature before 13", api.temperature_before_13_c, handle, every_s=every_s)

    def processes(self, api: NvmlApi, handle: Handle) -> tuple[ListedProcess, ...] | None:
        """All process lists, concatenated; a pid may be in several.

        ``None`` if the compute list, which has nearly all processes, failed and the others are empty.
        """
        if not self._lists:
            self._lists = [(f"{kind} processes", kind, api.new_process_buffer(kind)) for kind in ProcessKind]
        lists = [self.query(figure, api.processes, handle, kind, buffer) for figure, kind, buffer in self._lists]
        nonempty = [listed for listed in lists if listed]
        if len(nonempty) == 1:
            return nonempty[0]  # an unchanged list stays the same object
        found = tuple(process for listed in nonempty for process in listed)
        compute = lists[0]  # the first kind
        return found if found or compute is not None else None
