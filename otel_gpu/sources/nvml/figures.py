"""What one device can tell: asked once, and never again once it said it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from otel_gpu.errors import Gone, Unavailable, Unsupported
from otel_gpu.model import DeviceMemory, ListedProcess, ProcessKind
from otel_gpu.sources.nvml.api import Handle, NvmlApi
from otel_gpu.sources.nvml.faults import DeviceFailed, DriverFailed

T = TypeVar("T")


class Figures:
    """The figures of one device, with what it does not support remembered until NVML is initialised again."""

    def __init__(self) -> None:
        self._unsupported: set[str] = set()
        self.missing: list[str] = []

    def begin(self) -> None:
        """Start a new pass: forget what was missing from the last one, not what is unsupported."""
        self.missing = []

    def supports(self, figure: str) -> bool:
        """False once the device has said that it cannot tell this."""
        return figure not in self._unsupported

    def ask(self, figure: str, question: Callable[[], T]) -> T | None:
        """The figure, or ``None``: unsupported for good, or missing this time. A dead device raises."""
        if figure in self._unsupported:
            return None
        try:
            return question()
        except Unsupported:
            self._unsupported.add(figure)
        except Gone:
            pass
        except (DeviceFailed, DriverFailed):
            raise
        except Unavailable as error:
            self.missing.append(f"{figure}: {error}")
        return None

    def memory(self, api: NvmlApi, handle: Handle) -> DeviceMemory | None:
        """Device memory: with the driver's own part apart where it can be had, else without."""
        newest = self.ask("memory v2", lambda: api.memory(handle))
        if newest is not None or self.supports("memory v2"):
            return newest
        return self.ask("memory v1", lambda: api.memory_v1(handle))

    def temperature_c(self, api: NvmlApi, handle: Handle) -> float | None:
        """Core temperature, by whichever call the driver has."""
        newest = self.ask("temperature", lambda: api.temperature_c(handle))
        if newest is not None or self.supports("temperature"):
            return newest
        return self.ask("temperature before 13", lambda: api.temperature_before_13_c(handle))

    def processes(self, api: NvmlApi, handle: Handle) -> tuple[ListedProcess, ...] | None:
        """All lists one after the other, a pid as often as it stands there; ``None`` if there is no list at all."""
        found: list[ListedProcess] = []
        answered = False
        for kind in ProcessKind:
            listed = self.ask(f"{kind} processes", lambda kind=kind: api.processes(handle, kind))  # type: ignore[misc]
            if listed is not None:
                answered = True
                found.extend(listed)
        return tuple(found) if answered else None
