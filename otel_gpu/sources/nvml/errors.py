"""Errors of NVML: the meaning of each return code, which no other module compares."""

from __future__ import annotations

import pynvml

from otel_gpu.errors import NoValue, OtelGpuError, Unavailable, Unsupported

DEMO_HINT = "; without a GPU try: otel-gpu demo"
"""The end of the message for a missing library."""


class DeviceFailed(Unavailable):
    """This GPU no longer answers; others may."""


class DriverFailed(Unavailable):
    """No GPU answers: NVML must be shut down, initialised and enumerated again."""


class LibraryMissing(DriverFailed):
    """NVML cannot be loaded."""


class VersionMismatch(DriverFailed):
    """The library belongs to another version than the loaded driver."""


class NoAccess(Unavailable):
    """An unknown error. A single figure may fail with it; a GPU without any other answer is not accessible."""


class ListGrew(Unavailable):
    """The list has more entries than the buffer: repeat the call at once."""


class NotPermitted(Unsupported):
    """The call needs more privileges."""


_MEANING: dict[int, tuple[type[OtelGpuError], str]] = {
    # Raised by pynvml: it treats a sizing call with no entries as an error.
    pynvml.NVML_SUCCESS: (NoValue, "no entries"),
    pynvml.NVML_ERROR_UNINITIALIZED: (DriverFailed, "NVML is not initialised"),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (Unsupported, "not accepted by this driver (invalid argument)"),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (Unsupported, "not supported"),
    pynvml.NVML_ERROR_NO_PERMISSION: (NotPermitted, "not permitted: run as root or on the host"),
    pynvml.NVML_ERROR_NOT_FOUND: (NoValue, "not found"),
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE: (ListGrew, "the list grew while it was read"),
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: (DeviceFailed, "its external power cable is not attached"),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        DriverFailed,
        "the NVIDIA driver is not loaded: run nvidia-smi on the host, and modprobe nvidia if that fails",
    ),
    pynvml.NVML_ERROR_TIMEOUT: (Unavailable, "timed out"),
    pynvml.NVML_ERROR_IRQ_ISSUE: (DeviceFailed, "the kernel sees an interrupt problem with it"),
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        LibraryMissing,
        (
            "libnvidia-ml.so.1 is not found: install the NVIDIA driver, or in a container use the NVIDIA runtime "
            f"with NVIDIA_DRIVER_CAPABILITIES=utility{DEMO_HINT}"
        ),
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (Unsupported, "not in this driver's library"),
    pynvml.NVML_ERROR_CORRUPTED_INFOROM: (Unavailable, "its infoROM is corrupted"),
    pynvml.NVML_ERROR_GPU_IS_LOST: (
        DeviceFailed,
        "GPU is lost: it fell off the bus or is inaccessible; dmesg has its Xid, and it needs a reset or a reboot",
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: (
        DeviceFailed,
        "GPU requires a reset: otel-gpu pause, nvidia-smi --gpu-reset, otel-gpu resume",
    ),
    pynvml.NVML_ERROR_OPERATING_SYSTEM: (Unavailable, "the operating system blocked the request"),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        VersionMismatch,
        (
            "driver and library versions differ: reload the driver or reboot; if the driver was upgraded under this "
            "process, restart the agent (in a container, recreate it)"
        ),
    ),
    pynvml.NVML_ERROR_IN_USE: (Unavailable, "in use"),
    pynvml.NVML_ERROR_MEMORY: (Unavailable, "the driver is out of memory"),
    pynvml.NVML_ERROR_NO_DATA: (NoValue, "no data"),
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: (Unsupported, "this driver does not know that structure version"),
    pynvml.NVML_ERROR_DEPRECATED: (Unsupported, "withdrawn by this driver"),
    pynvml.NVML_ERROR_NOT_READY: (Unavailable, "not ready"),
    pynvml.NVML_ERROR_GPU_NOT_FOUND: (DeviceFailed, "GPU is no longer present"),
    pynvml.NVML_ERROR_UNKNOWN: (
        NoAccess,
        (
            "unknown error; in a container this often means that access to /dev/nvidia* was lost "
            "(systemctl daemon-reload does that): restart the container"
        ),
    ),
}


def translate(error: BaseException) -> OtelGpuError:
    """The error of the agent for an exception of a pynvml call."""
    if isinstance(error, pynvml.NVMLLibraryMismatchError):  # not an NVMLError
        return Unsupported("nvidia-ml-py is not the official one, or too old for this driver")
    if isinstance(error, pynvml.NVMLError):
        kind, text = _MEANING.get(error.value, (Unavailable, f"NVML error {error.value}"))
        return kind(text)
    return Unavailable(f"nvidia-ml-py failed: {type(error).__name__}: {error}")
