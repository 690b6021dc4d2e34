"""What one device can tell: asked as often as it changes, and never again once it said it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from otel_gpu.errors import Gone, Unavailable, Unsupported
from otel_gpu.model import DeviceMemory, ListedProcess, ProcessKind
from otel_gpu.sources.nvml.api import Handle, NvmlApi
from otel_gpu.sources.nvml.buffers import KeptList
from otel_gpu.sources.nvml.entries import memory_info
from otel_gpu.sources.nvml.faults import DeviceFailed, DriverFailed, NoAccess

T = TypeVar("T")

_SLACK_NS: Final = 500_000_000
"""So much sooner than it is due a figure may be asked for: passes do not come to the millisecond."""


class Figures:
    """The figures of one device, with what it does not support remembered until NVML is initialised again."""

    def __init__(self) -> None:
        self._unsupported: set[str] = set()
        self._now_ns = 0
        self._kept: dict[str, tuple[int, Any]] = {}
        self._memory = memory_info()
        self._lists: list[tuple[str, ProcessKind, KeptList[tuple[ListedProcess, ...]]]] = []
        self._missing: dict[str, list[str]] = {}
        self._told = False
        self._refusal: NoAccess | None = None

    def begin(self, now_ns: int) -> None:
        """Start a new pass, at this monotonic time: forget what was missing from the last, not what is unsupported."""
        self._now_ns = now_ns
        self._missing = {}
        self._told = False
        self._refusal = None

    @property
    def now_ns(self) -> int:
        """When this pass began, monotonic."""
        return self._now_ns

    def forget(self) -> None:
        """The device has become another, as when MIG is switched: what it could not tell it may tell now."""
        self._unsupported.clear()
        self._kept.clear()

    def ask_anew(self, figure: str) -> None:
        """Something has happened that may have changed this figure."""
        self._kept.pop(figure, None)

    def check_access(self) -> None:
        """NoAccess if this pass was told nothing at all, for a reason NVML does not name."""
        if self._refusal is not None and not self._told:
            raise self._refusal

    @property
    def missing(self) -> str | None:
        """What this pass did not get, and why: a reason once, with all the figures that it cost."""
        if not self._missing:
            return None
        reasons = (f"{', '.join(figures)}: {error}" for error, figures in self._missing.items())
        return "; ".join(reasons) or None

    def miss(self, figure: str, error: object) -> None:
        """Note that this pass did not get a figure."""
        self._missing.setdefault(str(error), []).append(figure)

    def supports(self, figure: str) -> bool:
        """False once the device has said that it cannot tell this."""
        return figure not in self._unsupported

    def ask(self, figure: str, question: Callable[..., T], *arguments: Any, every_s: float = 0.0) -> T | None:
        """The figure, or ``None``: unsupported for good, or missing this time. A dead device raises.

        One that was told is told again without asking for ``every_s``.
        """
        if figure in self._unsupported:
            return None
        if every_s and (kept := self._kept.get(figure)) is not None and self._now_ns < kept[0]:
            return kept[1]  # type: ignore[no-any-return]  # what the same question gave
        try:
            answer = question(*arguments)
        except Unsupported:
            self._unsupported.add(figure)
        except Gone:
            self._told = True
        except (DeviceFailed, DriverFailed):
            raise
        except Unavailable as error:
            if isinstance(error, NoAccess):
                self._refusal = error
            self.miss(figure, error)
        else:
            self._told = True
            if every_s:
                self._kept[figure] = self._now_ns + round(every_s * 1e9) - _SLACK_NS, answer
            return answer
        return None

    def memory(self, api: NvmlApi, handle: Handle) -> DeviceMemory | None:
        """Device memory: with the driver's own part apart where it can be had, else without."""
        newest = self.ask("memory v2", api.memory, handle, self._memory)
        if newest is not None or self.supports("memory v2"):
            return newest
        return self.ask("memory v1", api.memory_v1, handle)

    def temperature_c(self, api: NvmlApi, handle: Handle, *, every_s: float) -> float | None:
        """Core temperature, by whichever call the driver has."""
        newest = self.ask("temperature", api.temperature_c, handle, every_s=every_s)
        if newest is not None or self.supports("temperature"):
            return newest
        return self.ask("temperature before 13", api.temperature_before_13_c, handle, every_s=every_s)

    def processes(self, api: NvmlApi, handle: Handle) -> tuple[ListedProcess, ...] | None:
        """All lists one after the other, a pid as often as it stands there.

        ``None`` where nobody is listed and the compute list, where nearly everybody stands, was not told.
        """
        if not self._lists:
            self._lists = [(f"{kind} processes", kind, api.new_process_list(kind)) for kind in ProcessKind]
        lists = [self.ask(figure, api.processes, handle, kind, into) for figure, kind, into in self._lists]
        told = [listed for listed in lists if listed]
        if len(told) == 1:
            return told[0]  # as it is, which tells everybody after this that it is the same as before, if it is
        found = tuple(process for listed in told for process in listed)
        compute = lists[0]  # the first kind
        return found if found or compute is not None else None
