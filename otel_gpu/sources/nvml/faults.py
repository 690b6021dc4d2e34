"""What each NVML return code means for us. Nothing outside this file compares a code."""

from __future__ import annotations

import pynvml

from otel_gpu.errors import Gone, OtelGpuError, Unavailable, Unsupported

DEMO_HINT = "; without a GPU try: otel-gpu demo"
"""The end of the message for a missing library."""


class DeviceFailed(Unavailable):
    """This GPU does not answer any more; the others may."""


class DriverFailed(Unavailable):
    """Nothing answers: NVML must be shut down, initialised and enumerated again."""


class LibraryMissing(DriverFailed):
    """There is no NVML to ask."""


class VersionsDiffer(DriverFailed):
    """The library is not of the driver that is loaded."""


class NoAccess(Unavailable):
    """NVML does not say why: one figure may fail like this; a GPU that tells nothing else cannot be reached."""


class ListGrew(Unavailable):
    """More entries than the buffer holds: ask again at once."""


class NotPermitted(Unsupported):
    """Somebody with more rights would be answered."""


_MEANING: dict[int, tuple[type[OtelGpuError], str]] = {
    # NVML_SUCCESS raised by pynvml: a sizing call that said "nothing", which the wrapper takes for an error.
    pynvml.NVML_SUCCESS: (Gone, "nothing there"),
    pynvml.NVML_ERROR_UNINITIALIZED: (DriverFailed, "NVML is not initialised"),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (Unsupported, "not accepted by this driver (invalid argument)"),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (Unsupported, "not supported"),
    pynvml.NVML_ERROR_NO_PERMISSION: (NotPermitted, "not permitted: run as root or on the host"),
    pynvml.NVML_ERROR_NOT_FOUND: (Gone, "not found"),
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
        VersionsDiffer,
        (
            "driver and library versions differ: reload the driver or reboot; if the driver was upgraded under this "
            "process, restart the agent (in a container, make it anew)"
        ),
    ),
    pynvml.NVML_ERROR_IN_USE: (Unavailable, "in use"),
    pynvml.NVML_ERROR_MEMORY: (Unavailable, "the driver is out of memory"),
    pynvml.NVML_ERROR_NO_DATA: (Gone, "no data"),
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: (Unsupported, "this driver does not know that structure version"),
    pynvml.NVML_ERROR_DEPRECATED: (Unsupported, "withdrawn by this driver"),
    pynvml.NVML_ERROR_NOT_READY: (Unavailable, "not ready"),
    pynvml.NVML_ERROR_GPU_NOT_FOUND: (DeviceFailed, "GPU is not there any more"),
    pynvml.NVML_ERROR_UNKNOWN: (
        NoAccess,
        (
            "unknown error; in a container this often means that access to /dev/nvidia* was lost "
            "(systemctl daemon-reload does that): restart the container"
        ),
    ),
}


def translate(error: BaseException) -> OtelGpuError:
    """The meaning of whatever a pynvml call raised."""
    if isinstance(error, pynvml.NVMLLibraryMismatchError):  # not an NVMLError
        return Unsupported("nvidia-ml-py is not the official one, or too old for this driver")
    if isinstance(error, pynvml.NVMLError):
        kind, text = _MEANING.get(error.value, (Unavailable, f"NVML error {error.value}"))
        return kind(text)
    return Unavailable(f"nvidia-ml-py failed: {type(error).__name__}: {error}")
