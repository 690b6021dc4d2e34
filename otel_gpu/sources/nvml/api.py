"""Single NVML calls, in the agent's units and with its errors. One method is one call, without state.

Calls go through nvidia-ml-py. Where its wrapper fails (32-byte process entries, a sentinel it does not handle) or makes
two calls instead of one (lists), the library is called directly.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Final, TypeVar

import pynvml

from otel_gpu.errors import NoValue, OtelGpuError, Unsupported
from otel_gpu.model import (
    AccountingRecord,
    DeviceMemory,
    DriverFacts,
    ListedProcess,
    ProcessKind,
    UtilizationRow,
)
from otel_gpu.sources.nvml.buffers import (
    NOT_AVAILABLE,
    NOT_AVAILABLE_32,
    NOT_AVAILABLE_64,
    EmptyAnswer,
    FieldBuffer,
    ListBuffer,
    StructBuffer,
    process_buffer,
)
from otel_gpu.sources.nvml.errors import LibraryMissing, translate

T = TypeVar("T")
Handle = Any
"""An NVML device handle: an opaque pointer of nvidia-ml-py."""

_SUCCESS: Final = pynvml.NVML_SUCCESS

_LISTS: Final = {
    ProcessKind.COMPUTE: "nvmlDeviceGetComputeRunningProcesses",
    ProcessKind.GRAPHICS: "nvmlDeviceGetGraphicsRunningProcesses",
    ProcessKind.MPS: "nvmlDeviceGetMPSComputeRunningProcesses",
}
_VERSIONS_OF_LISTS: Final = {kind: (f"{name}_v3", f"{name}_v2") for kind, name in _LISTS.items()}
"""Drivers 470 to 510 have _v2, with the same layout."""
_VERSIONS_OF_WIDE_LISTS: Final = {kind: (f"{name}_v3",) for kind, name in _LISTS.items()}


_NO_ROWS: Final[EmptyAnswer[tuple[UtilizationRow, ...]]] = EmptyAnswer(pynvml.NVML_ERROR_NOT_FOUND, ())
"""What the driver returns for a GPU without work."""


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t. Structures of nvidia-ml-py look up a format at every access to a member."""

    _fields_: ClassVar = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Call NVML and translate its errors."""
    try:
        return function(*arguments)
    except OtelGpuError:
        raise
    except Exception as error:  # NVMLError; NVMLLibraryMismatchError, which is not one; TypeError
        raise translate(error) from None


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _figure(function: Callable[..., T], *arguments: Any) -> T:
    """A number. The driver's "not available" value raises NoValue, even if the call succeeds with it."""
    value = call(function, *arguments)
    if value in NOT_AVAILABLE:
        raise NoValue("not available")
    return value


def _percent_ratio(percent: int) -> float | None:
    """A ratio from 0 to 1; ``None`` for an invalid value, which drivers return while a GPU initialises."""
    return percent / 100 if 0 <= percent <= 100 else None


class NvmlApi:
    """NVML calls. Thread-safe, as NVML is."""

    def __init__(self) -> None:
        self._wide_process_info = False
        self._functions: dict[str, Any] = {}

    # -- the library ----------------------------------------------------------------

    def init(self) -> DriverFacts:
        """Load and initialise NVML; the version of the driver."""
        try:
            call(pynvml.nvmlInit)
        except LibraryMissing as error:
            raise LibraryMissing(_load_error() or str(error)) from None
        # Drivers with the first symbol and without the second write 32-byte entries in the call for 24-byte ones.
        self._wide_process_info = self._exports("nvmlDeviceGetConfComputeMemSizeInfo") and not self._exports(
            "nvmlDeviceGetRunningProcessDetailList"
        )
        return DriverFacts(self._optional(pynvml.nvmlSystemGetDriverVersion))

    def shutdown(self) -> None:
        """Release the driver."""
        call(pynvml.nvmlShutdown)

    def device_count(self) -> int:
        """The number of GPUs."""
        return int(call(pynvml.nvmlDeviceGetCount))

    def handle(self, index: int) -> Handle:
        """The handle of the GPU at this index."""
        return call(pynvml.nvmlDeviceGetHandleByIndex, index)

    def _exports(self, symbol: str) -> bool:
        return hasattr(_library(), symbol)

    def _function(self, name: str) -> Any:
        """A function of the library, for direct calls."""
        function = self._functions.get(name)
        if function is None:
            try:
                function = self._functions[name] = getattr(_library(), name)
            except (AttributeError, OSError):
                raise translate(pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)) from None
        return function

    def _optional(self, function: Callable[[], bytes | str]) -> str | None:
        try:
            return _text(call(function))
        except OtelGpuError:
            return None

    # -- identity -------------------------------------------------------------------

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

    def memory(self, handle: Handle, buffer: StructBuffer[DeviceMemory]) -> DeviceMemory:
        """Memory with reserved memory as a separate figure."""
        function = self._function("nvmlDeviceGetMemoryInfo_v2")
        return buffer.fill(lambda info: int(function(handle, info)))

    def memory_v1(self, handle: Handle) -> DeviceMemory:
        """Memory from drivers before 510, where used includes reserved memory."""
        info = call(pynvml.nvmlDeviceGetMemoryInfo, handle)
        return DeviceMemory(info.total, info.used, info.free, None)

    def new_process_buffer(self, kind: ProcessKind) -> ListBuffer[tuple[ListedProcess, ...]]:
        """A buffer for one of a device's process lists."""
        return process_buffer(kind, wide=self._wide_process_info)

    def processes(
        self, handle: Handle, kind: ProcessKind, buffer: ListBuffer[tuple[ListedProcess, ...]]
    ) -> tuple[ListedProcess, ...]:
        """One of the driver's process lists."""
        first_error: Unsupported | None = None
        for version in (_VERSIONS_OF_WIDE_LISTS if self._wide_process_info else _VERSIONS_OF_LISTS)[kind]:
            try:
                function = self._function(version)
                return buffer.fill(lambda entries, count, request=function: request(handle, count, entries))  # type: ignore[misc]
            except Unsupported as error:
                first_error = first_error or error
        raise first_error or Unsupported("no such list")

    def utilization(
        self, handle: Handle, since_us: int, buffer: ListBuffer[tuple[UtilizationRow, ...]]
    ) -> tuple[UtilizationRow, ...]:
        """Engine use per process over the samples after ``since_us`` (Unix time); empty without work."""
        function = self._function("nvmlDeviceGetProcessUtilization")
        since = ctypes.c_ulonglong(since_us)
        try:
            return buffer.fill(lambda rows, count: function(handle, rows, count, since), _NO_ROWS)
        except NoValue:
            return ()

    def fields(self, handle: Handle, buffer: FieldBuffer) -> dict[int, float]:
        """Figures by field id, as many as this driver supports."""
        function = self._function("nvmlDeviceGetFieldValues")
        return buffer.fill(lambda count, values: int(function(handle, count, values)))

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
        """Shares of the last sample period in which a kernel ran, and in which memory was accessed."""
        rates = _Utilization()
        _check(self._function("nvmlDeviceGetUtilizationRates")(handle, ctypes.byref(rates)))
        return _percent_ratio(rates.gpu), _percent_ratio(rates.memory)

    def encoder_ratio(self, handle: Handle) -> float | None:
        """Utilisation of the video encoders."""
        return _percent_ratio(call(pynvml.nvmlDeviceGetEncoderUtilization, handle)[0])

    def decoder_ratio(self, handle: Handle) -> float | None:
        """Utilisation of the video decoders."""
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
        if found.value in NOT_AVAILABLE:
            raise NoValue("not available")
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
        """Whether the driver keeps the GPU initialised without clients."""
        return bool(call(pynvml.nvmlDeviceGetPersistenceMode, handle))

    # -- MIG ------------------------------------------------------------------------

    def mig_enabled(self, handle: Handle) -> bool:
        """Whether MIG mode is enabled."""
        return bool(call(pynvml.nvmlDeviceGetMigMode, handle)[0])

    def max_mig_devices(self, handle: Handle) -> int:
        """The number of MIG indices, some of which may be unused."""
        return int(call(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle))

    def mig_handle(self, handle: Handle, index: int) -> Handle:
        """The MIG device at this index; NoValue if the index is unused."""
        return call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)

    def mig_instance_ids(self, handle: Handle) -> tuple[int, int]:
        """GPU instance id and compute instance id of a MIG device."""
        return int(call(pynvml.nvmlDeviceGetGpuInstanceId, handle)), int(
            call(pynvml.nvmlDeviceGetComputeInstanceId, handle)
        )

    def largest_instance_sms(self, handle: Handle) -> int:
        """Multiprocessors of the largest possible GPU instance, the base for fractions of a GPU.

        Its profile has seven slices (A100, H100 and later) or four (A30).
        """
        for profile in (pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE):
            with suppress(Unsupported):
                # Version 1 of the structure: version 2 adds a name and needs driver 470.
                found = call(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, profile, 1)
                return int(found.multiprocessorCount)
        raise Unsupported("no profile of a whole GPU")

    def mig_attributes(self, handle: Handle) -> tuple[int, int, int]:
        """Multiprocessors, GPU slices and memory (MiB) of a MIG device."""
        attributes = call(pynvml.nvmlDeviceGetAttributes_v2, handle)
        return int(attributes.multiprocessorCount), int(attributes.gpuInstanceSliceCount), int(attributes.memorySizeMB)

    # -- accounting -----------------------------------------------------------------

    def accounting_enabled(self, handle: Handle) -> bool:
        """Whether accounting mode is enabled."""
        return bool(call(pynvml.nvmlDeviceGetAccountingMode, handle) == pynvml.NVML_FEATURE_ENABLED)

    def set_accounting(self, handle: Handle, *, enabled: bool) -> None:
        """Enable or disable accounting mode; disabling deletes the records. NotPermitted without root."""
        mode = pynvml.NVML_FEATURE_ENABLED if enabled else pynvml.NVML_FEATURE_DISABLED
        call(pynvml.nvmlDeviceSetAccountingMode, handle, mode)

    def accounting_pids(self, handle: Handle, buffer: ListBuffer[frozenset[int]]) -> frozenset[int]:
        """Pids with an accounting record, of running and ended processes."""
        function = self._function("nvmlDeviceGetAccountingPids")
        return buffer.fill(lambda pids, count: function(handle, count, pids))

    def accounting_record(self, handle: Handle, pid: int) -> AccountingRecord:
        """The accounting record of a process. A direct call: nvidia-ml-py fails if the memory figure is absent."""
        stats = pynvml.c_nvmlAccountingStats_t()
        _check(self._function("nvmlDeviceGetAccountingStats")(handle, ctypes.c_uint(pid), ctypes.byref(stats)))
        return AccountingRecord(
            pid=pid,
            start_time_us=int(stats.startTime),
            time_ms=int(stats.time),
            gpu_percent=_known(stats.gpuUtilization, NOT_AVAILABLE_32),
            memory_percent=_known(stats.memoryUtilization, NOT_AVAILABLE_32),
            max_memory_bytes=_known(stats.maxMemoryUsage, NOT_AVAILABLE_64),
            running=bool(stats.isRunning),
        )

    # -- events ---------------------------------------------------------------------

    def new_event_set(self) -> Any:
        """A new, empty event set."""
        return call(pynvml.nvmlEventSetCreate)

    def watch_xid(self, handle: Handle, event_set: Any) -> None:
        """Register this GPU's critical errors with the event set."""
        call(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, event_set)

    def wait_xid(self, event_set: Any, timeout_ms: int) -> tuple[int, int] | None:
        """The next critical error as (address of the GPU's handle, XID); ``None`` on a timeout."""
        event = pynvml.c_nvmlEventData_t()
        wait = self._function("nvmlEventSetWait_v2")
        code = wait(event_set, ctypes.byref(event), ctypes.c_uint(timeout_ms))
        if code == pynvml.NVML_ERROR_TIMEOUT:
            return None
        _check(code)
        return address(event.device), int(event.eventData)

    def free_event_set(self, event_set: Any) -> None:
        """Free the event set."""
        call(pynvml.nvmlEventSetFree, event_set)


def address(handle: Handle) -> int:
    """The pointer value of a handle, which identifies it."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _known(value: int, absent: int) -> int | None:
    return None if value == absent else int(value)


def _library() -> ctypes.CDLL:
    """The library that nvidia-ml-py has loaded: the loader returns the same one for the same name."""
    return ctypes.CDLL("libnvidia-ml.so.1")


def _load_error() -> str | None:
    """Why an existing library cannot be loaded: no permission, the wrong architecture, a missing symbol."""
    try:
        _library()
    except OSError as error:
        reason = str(error)
        return None if "No such file" in reason else f"libnvidia-ml.so.1 cannot be loaded: {reason}"
    return None


def _check(code: int) -> None:
    if code != _SUCCESS:
        raise translate(pynvml.NVMLError(code))
