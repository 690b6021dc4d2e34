"""The driver's accounting per process: reads its mode on every GPU, and switches it on or off as root."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final, TypeVar

from otel_gpu.errors import OtelGpuError, Unavailable, Unsupported
from otel_gpu.sources.nvml.api import Handle, NvmlApi
from otel_gpu.sources.nvml.errors import NotPermitted
from otel_gpu.sources.workers import Pending, Worker

T = TypeVar("T")

_INIT_DEADLINE_S: Final = 30.0
_RELEASE_S: Final = 1.5
_NAMELESS: Final = "NVIDIA GPU"
# nvml.h, nvmlDeviceSetAccountingMode: on a GPU in MIG mode it is disabled and cannot be changed.
_IN_MIG_MODE: Final = "not supported in MIG mode, where the driver keeps it off"
# The kernel module's test of an administrator is capable(CAP_SYS_ADMIN), which root in a container lacks.
_NOT_PERMITTED: Final = (
    "not permitted: run as root on the host, or in a container as root with SYS_ADMIN: "
    "docker run --user 0 --cap-add SYS_ADMIN …, in Kubernetes "
    "securityContext: {runAsUser: 0, capabilities: {add: [SYS_ADMIN]}}"
)


class Mode(StrEnum):
    """The accounting mode of one GPU. Unknown: the driver did not answer."""

    ON = "on"
    OFF = "off"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GpuAccounting:
    """The accounting mode of one GPU; ``changed`` if it was switched now.

    ``reason`` is why the mode is unsupported, unknown or not the wanted one. Without persistence mode (``persistent``;
    ``None``: unknown) the mode is lost when the driver unloads.
    """

    index: int
    name: str = _NAMELESS
    mode: Mode = Mode.UNKNOWN
    changed: bool = False
    reason: str | None = None
    persistent: bool | None = None

    @property
    def is_lost_on_unload(self) -> bool:
        """Whether it is on, and the driver loses it when it unloads."""
        return self.mode is Mode.ON and self.persistent is False


def accounting(api: NvmlApi, *, deadline_s: float, wanted: Mode | None = None) -> tuple[GpuAccounting, ...]:
    """The accounting mode of every GPU, after switching to ``wanted`` if given. Unavailable if NVML is.

    GPUs are queried in parallel and have ``deadline_s`` together.
    """
    control = Worker("otel-gpu-setup")
    try:
        opening = control.start(partial(_open, api))
        count = opening.result(opening.started_s + _INIT_DEADLINE_S)
    except OtelGpuError as error:
        control.close()
        raise Unavailable(f"NVML: {error}") from None
    workers = [Worker(f"otel-gpu-setup-{index}") for index in range(count)]
    reads = [_start(worker, partial(_read, api, index, wanted)) for index, worker in enumerate(workers)]
    deadline_at_s = time.monotonic() + deadline_s
    found = tuple(_outcome(index, read, deadline_at_s) for index, read in enumerate(reads))
    if not any(worker.stuck for worker in workers):  # shutting NVML down during a call is undefined
        with suppress(OtelGpuError):
            control.start(api.shutdown).result(time.monotonic() + _RELEASE_S)
    for worker in (control, *workers):
        worker.close()
    return found


def is_done(gpus: Sequence[GpuAccounting], wanted: Mode) -> bool:
    """Whether every GPU that supports accounting has the wanted mode."""
    return all(gpu.mode in {wanted, Mode.UNSUPPORTED} for gpu in gpus)


# ---------------------------------------------------------------------------- calls of the driver


def _open(api: NvmlApi) -> int:
    """Initialise NVML and return the number of GPUs."""
    api.init()
    try:
        count = api.device_count()
        if count == 0:
            raise Unavailable("no GPU is visible: check nvidia-smi -L and NVIDIA_VISIBLE_DEVICES")
    except OtelGpuError:
        with suppress(OtelGpuError):
            api.shutdown()
        raise
    return count


def _start(worker: Worker, read: Callable[[], GpuAccounting]) -> Pending[GpuAccounting] | OtelGpuError:
    try:
        return worker.start(read)
    except OtelGpuError as error:
        return error


def _outcome(index: int, read: Pending[GpuAccounting] | OtelGpuError, deadline_at_s: float) -> GpuAccounting:
    try:
        if isinstance(read, OtelGpuError):
            raise read
        return read.result(deadline_at_s)
    except OtelGpuError as error:
        return GpuAccounting(index, reason=str(error))


def _read(api: NvmlApi, index: int, wanted: Mode | None) -> GpuAccounting:
    handle = api.handle(index)
    name = _optional(api.name, handle) or _NAMELESS
    gpu = GpuAccounting(index, name, persistent=_optional(api.persistence_mode, handle))
    if _optional(api.mig_enabled, handle):
        return replace(gpu, mode=Mode.UNSUPPORTED, reason=_IN_MIG_MODE)
    try:
        gpu = replace(gpu, mode=_mode(api, handle))
        if wanted is None or gpu.mode is wanted:
            return gpu
        api.set_accounting(handle, enabled=wanted is Mode.ON)
        mode = _mode(api, handle)
    except NotPermitted:
        return replace(gpu, reason=_NOT_PERMITTED)
    except Unsupported as error:
        return replace(gpu, mode=Mode.UNSUPPORTED, reason=str(error))
    except OtelGpuError as error:
        return replace(gpu, reason=str(error))
    is_changed = mode is wanted
    reason = None if is_changed else "the driver reported success but did not change it"
    return replace(gpu, mode=mode, changed=is_changed, reason=reason)


def _mode(api: NvmlApi, handle: Handle) -> Mode:
    return Mode.ON if api.accounting_enabled(handle) else Mode.OFF


def _optional(call: Callable[[Handle], T], handle: Handle) -> T | None:
    try:
        return call(handle)
    except OtelGpuError:
        return None
