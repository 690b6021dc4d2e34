"""What is set up once, as root: accounting, the driver's books per process, on every GPU. Nothing else is changed."""

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
from otel_gpu.view.terminal import cells, pad, printable

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
    """Accounting mode of one GPU. Unknown: it supports it, or may, and did not say."""

    ON = "on"
    OFF = "off"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GpuAccounting:
    """Accounting of one GPU as it is now; ``changed`` if it was not so before.

    ``reason`` is why it is not supported, not known, or not as it was wanted. Without persistence mode
    (``persistent``; ``None``: not told) the mode is lost when the driver unloads.
    """

    index: int
    name: str = _NAMELESS
    mode: Mode = Mode.UNKNOWN
    changed: bool = False
    reason: str | None = None
    persistent: bool | None = None

    @property
    def is_lost_on_unload(self) -> bool:
        """Whether it is on, and not for long."""
        return self.mode is Mode.ON and self.persistent is False


def accounting(api: NvmlApi, *, deadline_s: float, wanted: Mode | None = None) -> tuple[GpuAccounting, ...]:
    """Every GPU's accounting mode, switched to what is wanted where that is said; Unavailable if NVML is.

    The GPUs are asked side by side and have ``deadline_s`` together.
    """
    control = Worker("otel-gpu-setup")
    try:
        opening = control.start(partial(_open, api))
        count = opening.result(opening.started_s + _INIT_DEADLINE_S)
    except OtelGpuError as error:
        control.close()
        raise Unavailable(f"NVML: {error}") from None
    workers = [Worker(f"otel-gpu-setup-{index}") for index in range(count)]
    visits = [_begin(worker, partial(_visit, api, index, wanted)) for index, worker in enumerate(workers)]
    until_s = time.monotonic() + deadline_s
    found = tuple(_outcome(index, visit, until_s) for index, visit in enumerate(visits))
    if not any(worker.stuck for worker in workers):  # shutting NVML down under a call is undefined
        with suppress(OtelGpuError):
            control.start(api.shutdown).result(time.monotonic() + _RELEASE_S)
    for worker in (control, *workers):
        worker.close()
    return found


def is_done(gpus: Sequence[GpuAccounting], wanted: Mode) -> bool:
    """Whether every GPU that supports accounting has it as it is wanted."""
    return all(gpu.mode in {wanted, Mode.UNSUPPORTED} for gpu in gpus)


def report(gpus: Sequence[GpuAccounting], wanted: Mode) -> str:
    """One line for each GPU: which, and what happened."""
    names = [printable(gpu.name) for gpu in gpus]
    index_width = max(len(str(gpu.index)) for gpu in gpus)
    name_width = max(map(cells, names))
    return "".join(
        f"GPU {gpu.index:<{index_width}}  {pad(name, name_width)}  {printable(_happened(gpu, wanted))}\n"
        for gpu, name in zip(gpus, names, strict=True)
    )


def _happened(gpu: GpuAccounting, wanted: Mode) -> str:
    if gpu.mode is Mode.UNSUPPORTED:
        return f"accounting {gpu.reason}"
    if gpu.mode is not wanted:
        return f"accounting is {'unknown' if gpu.mode is Mode.UNKNOWN else f'still {gpu.mode}'}: {gpu.reason}"
    happened = f"accounting is {gpu.mode} now" if gpu.changed else f"accounting was {gpu.mode} already"
    if gpu.is_lost_on_unload:
        happened += (
            "; persistence mode is off, so it is lost when the driver unloads; "
            f"to keep it, as root: nvidia-smi -i {gpu.index} -pm 1"
        )
    return happened


# ---------------------------------------------------------------------------- asking the driver


def _open(api: NvmlApi) -> int:
    """Initialise NVML; how many GPUs there are."""
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


def _begin(worker: Worker, visit: Callable[[], GpuAccounting]) -> Pending[GpuAccounting] | OtelGpuError:
    try:
        return worker.start(visit)
    except OtelGpuError as error:
        return error


def _outcome(index: int, visit: Pending[GpuAccounting] | OtelGpuError, until_s: float) -> GpuAccounting:
    try:
        if isinstance(visit, OtelGpuError):
            raise visit
        return visit.result(until_s)
    except OtelGpuError as error:
        return GpuAccounting(index, reason=str(error))


def _visit(api: NvmlApi, index: int, wanted: Mode | None) -> GpuAccounting:
    handle = api.handle(index)
    gpu = GpuAccounting(index, _told(api.name, handle) or _NAMELESS, persistent=_told(api.persistence_mode, handle))
    if _told(api.mig_enabled, handle):
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
    changed = mode is wanted
    return replace(gpu, mode=mode, changed=changed, reason=None if changed else "the driver agreed and did not do it")


def _mode(api: NvmlApi, handle: Handle) -> Mode:
    return Mode.ON if api.accounting_enabled(handle) else Mode.OFF


def _told(question: Callable[[Handle], T], handle: Handle) -> T | None:
    try:
        return question(handle)
    except OtelGpuError:
        return None
