"""What the doctor says of NVML, the driver and each GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from otel_gpu.doctor.findings import Finding, Verdict, blind, counted, degraded, ok, unused
from otel_gpu.model import GpuHealth, GpuReading
from otel_gpu.setup import GpuAccounting, Mode
from otel_gpu.sources.base import GpuRead
from otel_gpu.sources.nvml.roll import Nameless

_NVML_FIX: Final = (
    "make nvidia-smi work here first; in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=utility …, "
    "in Kubernetes runtimeClassName: nvidia"
)
_RESET: Final = "as root: otel-gpu pause; nvidia-smi --gpu-reset -i {}; otel-gpu resume"
_HUNG_FIX: Final = "dmesg | grep -i -e nvrm -e xid says why; often only a reboot helps"
_FAILED_FIXES: Final = (
    ("GPU is lost", f"its Xid: dmesg | grep -i xid; {_RESET}; if that fails, reboot"),
    ("GPU requires a reset", _RESET),
    ("no answer within", f"{_HUNG_FIX}; where GPU {{}} is only slow: --deadline 10s"),
    ("", "docs/faults.md has this reason; more of it: nvidia-smi -q -i {}"),
)
"""What mends a GPU, by what its reason says (``sources/nvml/faults.py``, ``slot.py``)."""

_REASON_FIX: Final = "docs/faults.md has this reason; what the driver itself says: dmesg | grep -i nvrm"
_DRIVER_FIX: Final = "on the host: modprobe nvidia; what it says: dmesg | grep -i nvrm"
_VERSION_FIX: Final = "this must tell it: nvidia-smi --query-gpu=driver_version --format=csv"
_ACCOUNTING_FIX: Final = "as root: otel-gpu setup accounting, or nvidia-smi -am 1"
_PERSISTENCE_FIX: Final = "as root: systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"

# Both flavours: "NVIDIA UNIX x86_64 Kernel Module  570.124.06  …", "NVIDIA UNIX Open Kernel Module for x86_64  570…".
_MODULE: Final = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+([0-9]{1,5}(?:\.[0-9]{1,5}){1,3})\b")


def parse_module_version(text: str) -> str | None:
    """The kernel module's version from ``/proc/driver/nvidia/version``."""
    found = _MODULE.search(text)
    return found[1] if found else None


def read_module_version(proc_root: Path) -> str | None:
    """The version of the kernel module that is loaded; ``None`` where none is."""
    try:
        return parse_module_version((proc_root / "driver/nvidia/version").read_text("utf-8", "replace"))
    except OSError:
        return None


def examine_gpus(read: GpuRead, proc_root: Path, nameless: Sequence[Nameless] = ()) -> list[Finding]:
    """Judge what NVML tells: of itself, of the driver, and of each GPU that answers.

    ``nameless`` are GPUs that it counts beside those that were read.
    """
    gpus = [finding for gpu in read.gpus if gpu.answered for finding in _gpu(gpu)]
    return [_nvml(read, nameless), _driver(read, proc_root), *gpus]


def listed_pids(read: GpuRead) -> set[int]:
    """Every pid that stands in one of the driver's lists, those of MIG instances included."""
    lists = [processes for gpu in read.gpus for processes in (gpu.processes, *(mig.processes for mig in gpu.mig or ()))]
    return {process.pid for processes in lists for process in processes or ()}


def examine_modes(read: GpuRead, accounting: Sequence[GpuAccounting]) -> list[Finding]:
    """Judge accounting and persistence mode on the GPUs that answer, all in one line each."""
    answering = [gpu for gpu in read.gpus if gpu.answered]
    indices = {gpu.identity.index for gpu in answering}
    return [*_accounting([gpu for gpu in accounting if gpu.index in indices]), *_persistence(answering)]


def _accounting(asked: Sequence[GpuAccounting]) -> Iterator[Finding]:
    """Without it nobody sees who comes and goes between two looks."""
    on, off, unsupported, unknown = (
        [gpu for gpu in asked if gpu.mode is mode] for mode in (Mode.ON, Mode.OFF, Mode.UNSUPPORTED, Mode.UNKNOWN)
    )
    found = []
    if on:
        found.append(f"on for {len(on)} of {counted(len(asked), 'GPU')}")
    if off:
        indices = _indices([gpu.index for gpu in off])
        found.append(f"off on {indices}: who comes and goes there between two looks is not seen")
    reasons = dict.fromkeys(gpu.reason for gpu in (*unsupported, *unknown))
    found += [f"{reason}: {_indices([gpu.index for gpu in asked if gpu.reason == reason])}" for reason in reasons]
    if not found:
        return
    text = "; ".join(found)
    if off or unknown:
        yield degraded("accounting", text, _ACCOUNTING_FIX)
    else:
        yield ok("accounting", text) if on else unused("accounting", text)


def _persistence(answering: Sequence[GpuReading]) -> Iterator[Finding]:
    """Without it the driver forgets a GPU whenever nobody has it open, as while the agent is restarted."""
    told = [gpu for gpu in answering if gpu.persistence_mode is not None]
    off = [gpu.identity.index for gpu in told if not gpu.persistence_mode]
    if off:
        found = (
            f"off on {_indices(off)}: when the last who has it open goes, accounting is lost there and counters may "
            "begin anew; the next who opens it waits for seconds"
        )
        yield degraded("persistence", found, _PERSISTENCE_FIX)
    elif told:
        yield ok("persistence", f"on for {len(told)} of {counted(len(answering), 'GPU')}")
    elif answering:
        yield unused("persistence", "no GPU here has such a mode")


def _indices(indices: Sequence[int]) -> str:
    return f"GPU {', '.join(map(str, indices))}"


def _nvml(read: GpuRead, nameless: Sequence[Nameless]) -> Finding:
    if not read.gpus and read.asleep:
        return ok("nvml", f"{counted(read.asleep, 'GPU')} asleep and not woken: what they tell shows when one is used")
    gpus = [Nameless(gpu.identity.index, gpu.health, gpu.reason or "") for gpu in read.gpus] + list(nameless)
    if not gpus:
        hangs = "no answer within" in (read.reason or "")
        return blind("nvml", read.reason or "no GPU", _HUNG_FIX if hangs else _NVML_FIX)
    failed = [gpu for gpu in gpus if gpu.health is GpuHealth.FAILED]
    asleep = [gpu for gpu in gpus if gpu.health is GpuHealth.ASLEEP]
    answering = f"{sum(gpu.answered for gpu in read.gpus)} of {counted(len(gpus), 'GPU')} answering"
    if asleep:
        answering += f", {len(asleep)} asleep and not woken"
    if not failed and (not read.reason or all(gpu.health in (GpuHealth.OK, GpuHealth.ASLEEP) for gpu in gpus)):
        return ok("nvml", answering)
    verdict = Verdict.BLIND if len(failed) == len(gpus) else Verdict.DEGRADED
    found = answering + (f"; {read.reason}" if read.reason else "")
    return Finding("nvml", verdict, found, _failed_fix(failed) if failed else _REASON_FIX)


def _failed_fix(failed: Sequence[Nameless]) -> str:
    """What mends each of them; those with the same trouble are named together, as nvidia-smi takes them."""
    indices: dict[str, list[str]] = {}
    for gpu in failed:
        fix = next(fix for words, fix in _FAILED_FIXES if words in gpu.reason)
        indices.setdefault(fix, []).append(str(gpu.index))
    return "; ".join(fix.format(",".join(who)) for fix, who in indices.items())


def _driver(read: GpuRead, proc_root: Path) -> Finding:
    version = None if read.driver is None else read.driver.driver_version
    if version is not None:
        return ok("driver", version)
    module = read_module_version(proc_root)
    if read.gpus or (read.asleep and module is None):  # who sleeps has a driver that let him
        found = f"of unknown version{'' if module is None else f', its module is {module}'}"
        return degraded("driver", f"{found}: counters start at 0 with every start of the agent", _VERSION_FIX)
    if module is not None:
        return ok("driver", f"the kernel module {module} is loaded")
    return blind(
        "driver", f"the kernel module is not loaded: there is no {proc_root}/driver/nvidia/version", _DRIVER_FIX
    )


def _gpu(gpu: GpuReading) -> Iterator[Finding]:
    subject, index = f"gpu {gpu.identity.index}", gpu.identity.index
    lacking = [
        what
        for what, figure in (
            ("device memory", gpu.memory),
            ("process lists", gpu.processes if gpu.mig is None else ()),
            ("utilisation per process", gpu.utilization),
            ("power", gpu.power_w),
        )
        if figure is None
    ]
    fix = f"nothing, where the hardware or the driver cannot tell; what they do tell: nvidia-smi -q -i {index}"
    if gpu.memory is not None and gpu.memory.reserved_bytes is None:
        lacking.append("the driver's own memory apart from what is used (driver before 510)")
        fix = "a driver from 510 on"
    if gpu.energy_mj is None:
        lacking.append("an energy counter (Volta and later have one): energy will be integrated from power")
    if not lacking:
        yield ok(subject, f"{gpu.identity.name}: memory, processes, utilisation, power and energy are told")
        return
    reason = "; MIG gives no utilisation per process" if gpu.mig is not None and gpu.utilization is None else ""
    yield degraded(subject, f"{gpu.identity.name} lacks {', '.join(lacking)}{reason}", fix)
