"""Single NVML questions, in our units, with our errors. One method is one question; nothing is remembered here.

nvidia-ml-py asks; where its wrapper cannot give the answer (32-byte process entries, a sentinel it trips over), or
asks twice for what can be asked once (lists), the same library is called directly.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Final, TypeVar

import pynvml

from otel_gpu.errors import Gone, OtelGpuError, Unavailable, Unsupported
from otel_gpu.model import (
    AccountingRecord,
    DeviceMemory,
    DriverFacts,
    ListedProcess,
    ProcessKind,
    UtilizationRow,
)
from otel_gpu.sources.nvml.buffers import KeptAnswer, KeptFields, KeptList, Nothing
from otel_gpu.sources.nvml.entries import process_list
from otel_gpu.sources.nvml.faults import LibraryMissing, translate

T = TypeVar("T")
Handle = Any
"""An NVML device handle: an opaque pointer of nvidia-ml-py's."""

_SUCCESS: Final = pynvml.NVML_SUCCESS
_NO_VALUE: Final = 0xFFFFFFFFFFFFFFFF  # nvml.h: NVML_VALUE_NOT_AVAILABLE
_NO_VALUES: Final = frozenset({0xFFFFFFFF, _NO_VALUE})  # the same, as 32 bits write it

_LISTS: Final = {
    ProcessKind.COMPUTE: "nvmlDeviceGetComputeRunningProcesses",
    ProcessKind.GRAPHICS: "nvmlDeviceGetGraphicsRunningProcesses",
    ProcessKind.MPS: "nvmlDeviceGetMPSComputeRunningProcesses",
}
_VERSIONS_OF_LISTS: Final = {kind: (f"{name}_v3", f"{name}_v2") for kind, name in _LISTS.items()}
"""Drivers 470 to 510 have _v2, alike."""
_VERSIONS_OF_WIDE_LISTS: Final = {kind: (f"{name}_v3",) for kind, name in _LISTS.items()}


_NO_ROWS: Final[Nothing[tuple[UtilizationRow, ...]]] = Nothing(pynvml.NVML_ERROR_NOT_FOUND, ())
"""What the driver says in every pass over a GPU on which nobody works."""


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t. nvidia-ml-py's own structures look up, at every access, how a member is printed."""

    _fields_: ClassVar = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


def call(question: Callable[..., T], *arguments: Any) -> T:
    """Ask, and give errors their meaning."""
    try:
        return question(*arguments)
    except (Unavailable, Unsupported, Gone):
        raise
    except Exception as error:  # NVMLError, a mismatch error that is none, TypeError
        raise translate(error) from None


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _figure(question: Callable[..., T], *arguments: Any) -> T:
    """Ask for a number. The driver's "not available" is no number, even where the call succeeds with it."""
    value = call(question, *arguments)
    if value in _NO_VALUES:
        raise Gone("not available")
    return value


def _percent_ratio(percent: int) -> float | None:
    """A ratio 0 to 1; None for what cannot be one (drivers give nonsense while a GPU initialises)."""
    return percent / 100 if 0 <= percent <= 100 else None


class NvmlApi:
    """NVML, one question at a time. Thread-safe, as NVML is."""

    def __init__(self) -> None:
        self._wide_process_info = False
        self._functions: dict[str, Any] = {}

    # -- the library ----------------------------------------------------------------

    def init(self) -> DriverFacts:
        """Load and initialise NVML; the versions it tells."""
        try:
            call(pynvml.nvmlInit)
        except LibraryMissing as error:
            raise LibraryMissing(_load_error() or str(error)) from None
        # Drivers with this symbol and without that one write 32-byte entries through the 24-byte call.
        self._wide_process_info = self._exports("nvmlDeviceGetConfComputeMemSizeInfo") and not self._exports(
            "nvmlDeviceGetRunningProcessDetailList"
        )
        return DriverFacts(
            self._optional(pynvml.nvmlSystemGetDriverVersion), self._optional(pynvml.nvmlSystemGetNVMLVersion)
        )

    def shutdown(self) -> None:
        """Let go of the driver."""
        call(pynvml.nvmlShutdown)

    def device_count(self) -> int:
        """How many GPUs NVML sees."""
        return int(call(pynvml.nvmlDeviceGetCount))

    def handle(self, index: int) -> Handle:
        """The GPU at this index."""
        return call(pynvml.nvmlDeviceGetHandleByIndex, index)

    def _exports(self, symbol: str) -> bool:
        return hasattr(_library(), symbol)

    def _function(self, name: str) -> Any:
        """A function of the library, to be called directly."""
        function = self._functions.get(name)
        if function is None:
            try:
                function = self._functions[name] = getattr(_library(), name)
            except (AttributeError, OSError):
                raise translate(pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)) from None
        return function

    def _optional(self, question: Callable[[], bytes | str]) -> str | None:
        try:
            return _text(call(question))
        except OtelGpuError:
            return None

    # -- what does not change -------------------------------------------------------

    def uuid(self, handle: Handle) -> str:
        """The GPU's or MIG instance's UUID."""
        return _text(call(pynvml.nvmlDeviceGetUUID, handle))

    def name(self, handle: Handle) -> str:
        """The product name."""
        return _text(call(pynvml.nvmlDeviceGetName, handle))

    def minor(self, handle: Handle) -> int:
        """N of /dev/nvidiaN."""
        return int(_figure(pynvml.nvmlDeviceGetMinorNumber, handle))

    def pci_bus_id(self, handle: Handle) -> str:
        """PCI address as the kernel writes it (``0000:3b:00.0``)."""
        address = _text(call(pynvml.nvmlDeviceGetPciInfo, handle).busId).lower()
        domain, separator, rest = address.partition(":")
        return f"{domain[-4:]}:{rest}" if separator else address

    def serial(self, handle: Handle) -> str:
        """The board's serial number."""
        return _text(call(pynvml.nvmlDeviceGetSerial, handle))

    # -- figures --------------------------------------------------------------------

    def memory(self, handle: Handle, into: KeptAnswer[DeviceMemory]) -> DeviceMemory:
        """Memory with the driver's own part apart."""
        function = self._function("nvmlDeviceGetMemoryInfo_v2")
        return into.fill(lambda info: int(function(handle, info)))

    def memory_v1(self, handle: Handle) -> DeviceMemory:
        """Memory from drivers before 510, where used includes the driver's own part."""
        info = call(pynvml.nvmlDeviceGetMemoryInfo, handle)
        return DeviceMemory(info.total, info.used, info.free, None)

    def new_process_list(self, kind: ProcessKind) -> KeptList[tuple[ListedProcess, ...]]:
        """Where one of a device's process lists is read into, pass after pass."""
        return process_list(kind, wide=self._wide_process_info)

    def processes(
        self, handle: Handle, kind: ProcessKind, into: KeptList[tuple[ListedProcess, ...]]
    ) -> tuple[ListedProcess, ...]:
        """One of the driver's process lists."""
        refused: Unsupported | None = None
        for version in (_VERSIONS_OF_WIDE_LISTS if self._wide_process_info else _VERSIONS_OF_LISTS)[kind]:
            try:
                function = self._function(version)
                return into.fill(lambda buffer, count, ask=function: ask(handle, count, buffer))  # type: ignore[misc]
            except Unsupported as error:
                refused = refused or error
        raise refused or Unsupported("no such list")

    def utilization(
        self, handle: Handle, since_us: int, into: KeptList[tuple[UtilizationRow, ...]]
    ) -> tuple[UtilizationRow, ...]:
        """Engine use per process over the samples after ``since_us`` (Unix time); empty if nobody worked."""
        function = self._function("nvmlDeviceGetProcessUtilization")
        since = ctypes.c_ulonglong(since_us)
        try:
            return into.fill(lambda buffer, count: function(handle, buffer, count, since), _NO_ROWS)
        except Gone:
            return ()

    def fields(self, handle: Handle, into: KeptFields) -> dict[int, float]:
        """By id, as many of the figures as this driver tells so."""
        function = self._function("nvmlDeviceGetFieldValues")
        return into.fill(lambda count, values: int(function(handle, count, values)))

    def energy_mj(self, handle: Handle) -> int:
        """Energy since the driver was loaded."""
        return int(_figure(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle))

    def power_w(self, handle: Handle) -> float:
        """Power draw."""
        return float(_figure(pynvml.nvmlDeviceGetPowerUsage, handle)) / 1000

    def power_limit_w(self, handle: Handle) -> float:
        """The power limit in force."""
        return float(_figure(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)) / 1000

    def temperature_c(self, handle: Handle) -> float:
        """Core temperature."""
        return float(_figure(pynvml.nvmlDeviceGetTemperatureV, handle, pynvml.NVML_TEMPERATURE_GPU))

    def temperature_before_13_c(self, handle: Handle) -> float:
        """Core temperature through the call that version 13 deprecates."""
        return float(_figure(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU))

    def utilization_ratios(self, handle: Handle) -> tuple[float | None, float | None]:
        """Share of the last sample period in which any kernel ran, and in which memory was read or written."""
        rates = _Utilization()
        _check(self._function("nvmlDeviceGetUtilizationRates")(handle, ctypes.byref(rates)))
        return _percent_ratio(rates.gpu), _percent_ratio(rates.memory)

    def encoder_ratio(self, handle: Handle) -> float | None:
        """Use of the video encoders."""
        return _percent_ratio(call(pynvml.nvmlDeviceGetEncoderUtilization, handle)[0])

    def decoder_ratio(self, handle: Handle) -> float | None:
        """Use of the video decoders."""
        return _percent_ratio(call(pynvml.nvmlDeviceGetDecoderUtilization, handle)[0])

    def sm_clock_mhz(self, handle: Handle) -> int:
        """Clock of the multiprocessors."""
        return self._clock_mhz(handle, pynvml.NVML_CLOCK_SM)

    def memory_clock_mhz(self, handle: Handle) -> int:
        """Clock of the memory."""
        return self._clock_mhz(handle, pynvml.NVML_CLOCK_MEM)

    def _clock_mhz(self, handle: Handle, which: int) -> int:
        found = ctypes.c_uint()
        _check(self._function("nvmlDeviceGetClockInfo")(handle, which, ctypes.byref(found)))
        if found.value in _NO_VALUES:
            raise Gone("not available")
        return found.value

    def ecc_errors(self, handle: Handle) -> tuple[int, int]:
        """Corrected and uncorrected memory errors over the board's life."""
        counter = pynvml.NVML_AGGREGATE_ECC
        corrected = _figure(
            pynvml.nvmlDeviceGetTotalEccErrors, handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, counter
        )
        uncorrected = call(
            pynvml.nvmlDeviceGetTotalEccErrors, handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter
        )
        return int(corrected), int(uncorrected)

    def persistence_mode(self, handle: Handle) -> bool:
        """Whether the driver stays loaded with nobody using the GPU."""
        return bool(call(pynvml.nvmlDeviceGetPersistenceMode, handle))

    # -- MIG ------------------------------------------------------------------------

    def mig_enabled(self, handle: Handle) -> bool:
        """Whether the GPU is partitioned."""
        return bool(call(pynvml.nvmlDeviceGetMigMode, handle)[0])

    def max_mig_devices(self, handle: Handle) -> int:
        """How many MIG indices there can be; not all need to exist."""
        return int(call(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle))

    def mig_handle(self, handle: Handle, index: int) -> Handle:
        """The MIG device at this index; Gone where there is a hole."""
        return call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)

    def mig_instance_ids(self, handle: Handle) -> tuple[int, int]:
        """GPU instance and compute instance of a MIG device."""
        return int(call(pynvml.nvmlDeviceGetGpuInstanceId, handle)), int(
            call(pynvml.nvmlDeviceGetComputeInstanceId, handle)
        )

    def largest_instance_sms(self, handle: Handle) -> int:
        """Multiprocessors of the largest GPU instance there can be: what fractions of a GPU are told of.

        Its profile is seven slices (A100, H100 and later) or four (A30).
        """
        for profile in (pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE):
            with suppress(Unsupported):
                # Version 1 of the question: version 2 adds a name and is not in drivers before 470.
                found = call(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, profile, 1)
                return int(found.multiprocessorCount)
        raise Unsupported("no profile of a whole GPU")

    def mig_attributes(self, handle: Handle) -> tuple[int, int, int]:
        """Multiprocessors, GPU slices and memory (MiB) of a MIG device."""
        attributes = call(pynvml.nvmlDeviceGetAttributes_v2, handle)
        return int(attributes.multiprocessorCount), int(attributes.gpuInstanceSliceCount), int(attributes.memorySizeMB)

    # -- accounting -----------------------------------------------------------------

    def accounting_enabled(self, handle: Handle) -> bool:
        """Whether the driver keeps books per process."""
        return bool(call(pynvml.nvmlDeviceGetAccountingMode, handle) == pynvml.NVML_FEATURE_ENABLED)

    def set_accounting(self, handle: Handle, *, enabled: bool) -> None:
        """Have the driver keep books per process, or none: that forgets what is in them. NotPermitted if not root."""
        mode = pynvml.NVML_FEATURE_ENABLED if enabled else pynvml.NVML_FEATURE_DISABLED
        call(pynvml.nvmlDeviceSetAccountingMode, handle, mode)

    def accounting_pids(self, handle: Handle, into: KeptList[frozenset[int]]) -> frozenset[int]:
        """Pids in the books, running and ended."""
        function = self._function("nvmlDeviceGetAccountingPids")
        return into.fill(lambda buffer, count: function(handle, count, buffer))

    def accounting_record(self, handle: Handle, pid: int) -> AccountingRecord:
        """The books of one process; asked directly, because nvidia-ml-py fails on a memory figure that is absent."""
        stats = pynvml.c_nvmlAccountingStats_t()
        _check(self._function("nvmlDeviceGetAccountingStats")(handle, ctypes.c_uint(pid), ctypes.byref(stats)))
        return AccountingRecord(
            pid=pid,
            start_time_us=int(stats.startTime),
            time_ms=int(stats.time),
            gpu_percent=_known(stats.gpuUtilization, 0xFFFFFFFF),
            memory_percent=_known(stats.memoryUtilization, 0xFFFFFFFF),
            max_memory_bytes=_known(stats.maxMemoryUsage, _NO_VALUE),
            running=bool(stats.isRunning),
        )

    # -- events ---------------------------------------------------------------------

    def new_event_set(self) -> Any:
        """An empty set of events to wait for."""
        return call(pynvml.nvmlEventSetCreate)

    def watch_xid(self, handle: Handle, event_set: Any) -> None:
        """Have the driver report this GPU's critical errors to the set."""
        call(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, event_set)

    def wait_xid(self, event_set: Any, timeout_ms: int) -> tuple[int, int] | None:
        """The next critical error: address of the GPU's handle, XID. ``None`` when none came in time, as usual."""
        event = pynvml.c_nvmlEventData_t()
        wait = self._function("nvmlEventSetWait_v2")
        code = wait(event_set, ctypes.byref(event), ctypes.c_uint(timeout_ms))
        if code == pynvml.NVML_ERROR_TIMEOUT:
            return None
        _check(code)
        return address(event.device), int(event.eventData)

    def free_event_set(self, event_set: Any) -> None:
        """Give the set back."""
        call(pynvml.nvmlEventSetFree, event_set)


def address(handle: Handle) -> int:
    """What identifies a handle: where it points to."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _known(value: int, absent: int) -> int | None:
    return None if value == absent else int(value)


def _library() -> ctypes.CDLL:
    """The library nvidia-ml-py has loaded: the loader gives the same one for the same name."""
    return ctypes.CDLL("libnvidia-ml.so.1")


def _load_error() -> str | None:
    """Why the library cannot be loaded, if it is there: no permission, the wrong architecture, a symbol missing."""
    try:
        _library()
    except OSError as error:
        reason = str(error)
        return None if "No such file" in reason else f"libnvidia-ml.so.1 cannot be loaded: {reason}"
    return None


def _check(code: int) -> None:
    if code != _SUCCESS:
        raise translate(pynvml.NVMLError(code))
