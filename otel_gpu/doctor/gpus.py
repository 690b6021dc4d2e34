"""Checks of NVML, the driver, its device files and each GPU."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from otel_gpu.bounded_io import TooLarge, read_file
from otel_gpu.doctor.findings import Finding, Verdict, blind, degraded, ok, unused
from otel_gpu.model import GpuHealth, GpuReading
from otel_gpu.sources.base import GpuRead
from otel_gpu.sources.nvml.accounting import GpuAccounting, Mode
from otel_gpu.sources.nvml.inventory import UnidentifiedGpu
from otel_gpu.sources.proc.host import read_nvidia_minors
from otel_gpu.view.text import plural

_NVML_FIX: Final = (
    "make nvidia-smi work here first; in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=utility …, "
    "in Kubernetes runtimeClassName: nvidia"
)
_RESET: Final = "as root: otel-gpu pause; nvidia-smi --gpu-reset -i {}; otel-gpu resume"
_HUNG_FIX: Final = "for the cause: dmesg | grep -i -e nvrm -e xid; often only a reboot helps"
_FAILED_FIXES: Final = (
    ("GPU is lost", f"for its Xid: dmesg | grep -i xid; {_RESET}; if that fails, reboot"),
    ("GPU requires a reset", _RESET),
    ("no answer within", f"{_HUNG_FIX}; if GPU {{}} is only slow: --deadline 10s"),
    ("", "docs/faults.md explains this reason; for details: nvidia-smi -q -i {}"),
)
"""Fix of a failed GPU by a part of its reason (``sources/nvml``)."""

_REASON_FIX: Final = "docs/faults.md explains this reason; for the driver's messages: dmesg | grep -i nvrm"
_DRIVER_FIX: Final = "on the host, as root: modprobe nvidia; if it fails: dmesg | grep -i nvrm"
_VERSION_FIX: Final = "this command must print it: nvidia-smi --query-gpu=driver_version --format=csv"
_ACCOUNTING_FIX: Final = "as root: otel-gpu setup accounting, or nvidia-smi -am 1"
_PERSISTENCE_FIX: Final = "as root: systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"

# Both flavours: "NVIDIA UNIX x86_64 Kernel Module  570.124.06  …", "NVIDIA UNIX Open Kernel Module for x86_64  570…".
_MODULE: Final = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+([0-9]{1,5}(?:\.[0-9]{1,5}){1,3})\b")
_MAX_VERSION_BYTES: Final = 4096
"""The limit of /proc/driver/nvidia/version, which has two lines."""


# ---------------------------------------------------------------------------- NVML, driver, GPUs


def parse_module_version(text: str) -> str | None:
    """The kernel module's version from ``/proc/driver/nvidia/version``."""
    found = _MODULE.search(text)
    return found[1] if found else None


def read_module_version(proc_root: Path) -> str | None:
    """The version of the loaded kernel module; ``None`` if none is loaded."""
    try:
        version = read_file(proc_root / "driver/nvidia/version", _MAX_VERSION_BYTES)
        return parse_module_version(version.decode("utf-8", "replace"))
    except (OSError, TooLarge):
        return None


def listed_pids(read: GpuRead) -> set[int]:
    """Every pid in the driver's process lists, including those of MIG instances."""
    lists = [processes for gpu in read.gpus for processes in (gpu.processes, *(mig.processes for mig in gpu.mig or ()))]
    return {process.pid for processes in lists for process in processes or ()}


def check_gpus(read: GpuRead, proc_root: Path, unidentified: Sequence[UnidentifiedGpu] = ()) -> list[Finding]:
    """Check NVML, the driver, and the figures of each GPU that answers.

    ``unidentified`` are GPUs that NVML counts and that ``read`` does not contain.
    """
    gpus = [finding for gpu in read.gpus if gpu.answered for finding in _gpu(gpu)]
    return [_nvml(read, unidentified), _driver(read, proc_root), *gpus]


def _nvml(read: GpuRead, unidentified: Sequence[UnidentifiedGpu]) -> Finding:
    if not read.gpus and read.asleep:
        found = f"{plural(read.asleep, 'GPU')} asleep and not woken; details appear once a GPU is in use"
        return ok("nvml", found)
    gpus = [UnidentifiedGpu(gpu.identity.index, gpu.health, gpu.reason or "") for gpu in read.gpus] + list(unidentified)
    if not gpus:
        hangs = "no answer within" in (read.reason or "")
        return blind("nvml", read.reason or "no GPU", _HUNG_FIX if hangs else _NVML_FIX)
    failed = [gpu for gpu in gpus if gpu.health is GpuHealth.FAILED]
    asleep = [gpu for gpu in gpus if gpu.health is GpuHealth.ASLEEP]
    answering = f"{sum(gpu.answered for gpu in read.gpus)} of {plural(len(gpus), 'GPU')} answering"
    if asleep:
        answering += f", {len(asleep)} asleep and not woken"
    if not failed and (not read.reason or all(gpu.health in (GpuHealth.OK, GpuHealth.ASLEEP) for gpu in gpus)):
        return ok("nvml", answering)
    verdict = Verdict.BLIND if len(failed) == len(gpus) else Verdict.DEGRADED
    found = answering + (f"; {read.reason}" if read.reason else "")
    return Finding("nvml", verdict, found, _failed_fix(failed) if failed else _REASON_FIX)


def _failed_fix(failed: Sequence[UnidentifiedGpu]) -> str:
    """One fix per kind of fault, with the indices of its GPUs as nvidia-smi takes them."""
    indices: dict[str, list[str]] = {}
    for gpu in failed:
        fix = next(fix for words, fix in _FAILED_FIXES if words in gpu.reason)
        indices.setdefault(fix, []).append(str(gpu.index))
    return "; ".join(fix.format(",".join(gpus)) for fix, gpus in indices.items())


def _driver(read: GpuRead, proc_root: Path) -> Finding:
    version = None if read.driver is None else read.driver.driver_version
    if version is not None:
        return ok("driver", version)
    module = read_module_version(proc_root)
    if read.gpus or (read.asleep and module is None):  # only a loaded driver suspends a GPU
        found = f"version unknown{'' if module is None else f' (kernel module {module})'}"
        return degraded("driver", f"{found}: counters start at 0 at every start of the agent", _VERSION_FIX)
    if module is not None:
        return ok("driver", f"kernel module {module} is loaded")
    found = f"the kernel module is not loaded: {proc_root}/driver/nvidia/version does not exist"
    return blind("driver", found, _DRIVER_FIX)


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
    fix = f"none if the hardware or the driver does not support it; to compare: nvidia-smi -q -i {index}"
    if gpu.memory is not None and gpu.memory.reserved_bytes is None:
        lacking.append("reserved memory, which counts as used (driver before 510)")
        fix = "install driver 510 or later"
    if gpu.energy_mj is None:
        lacking.append("an energy counter (Volta and later have one): energy is integrated from power")
    if not lacking:
        yield ok(subject, f"{gpu.identity.name}: memory, processes, utilisation, power and energy are available")
        return
    reason = "; MIG gives no utilisation per process" if gpu.mig is not None and gpu.utilization is None else ""
    yield degraded(subject, f"{gpu.identity.name} lacks {', '.join(lacking)}{reason}", fix)


# ---------------------------------------------------------------------------- accounting and persistence mode


def check_modes(read: GpuRead, accounting: Sequence[GpuAccounting]) -> list[Finding]:
    """Check accounting and persistence mode of the GPUs that answer: one finding each for all GPUs."""
    answering = [gpu for gpu in read.gpus if gpu.answered]
    indices = {gpu.identity.index for gpu in answering}
    return [*_accounting([gpu for gpu in accounting if gpu.index in indices]), *_persistence(answering)]


def _accounting(gpus: Sequence[GpuAccounting]) -> Iterator[Finding]:
    """Without accounting mode, a process that starts and ends between two readings is not seen."""
    on, off, unsupported, unknown = (
        [gpu for gpu in gpus if gpu.mode is mode] for mode in (Mode.ON, Mode.OFF, Mode.UNSUPPORTED, Mode.UNKNOWN)
    )
    found = []
    if on:
        found.append(f"on for {len(on)} of {plural(len(gpus), 'GPU')}")
    if off:
        indices = _indices([gpu.index for gpu in off])
        found.append(f"off on {indices}: processes that start and end between two readings are missed")
    reasons = dict.fromkeys(gpu.reason for gpu in (*unsupported, *unknown))
    found += [f"{reason}: {_indices([gpu.index for gpu in gpus if gpu.reason == reason])}" for reason in reasons]
    if not found:
        return
    text = "; ".join(found)
    if off or unknown:
        yield degraded("accounting", text, _ACCOUNTING_FIX)
    else:
        yield ok("accounting", text) if on else unused("accounting", text)


def _persistence(answering: Sequence[GpuReading]) -> Iterator[Finding]:
    """Without persistence mode the driver unloads a GPU's state when the last process closes it."""
    known = [gpu for gpu in answering if gpu.persistence_mode is not None]
    off = [gpu.identity.index for gpu in known if not gpu.persistence_mode]
    if off:
        found = (
            f"off on {_indices(off)}: when the last process closes the GPU, accounting mode is lost and counters may "
            "restart; the next process waits for several seconds"
        )
        yield degraded("persistence", found, _PERSISTENCE_FIX)
    elif known:
        yield ok("persistence", f"on for {len(known)} of {plural(len(answering), 'GPU')}")
    elif answering:
        yield unused("persistence", "no GPU here supports it")


def _indices(indices: Sequence[int]) -> str:
    return f"GPU {', '.join(map(str, indices))}"


# ---------------------------------------------------------------------------- device files

_CONTROL: Final = "nvidiactl"
_UVM: Final = "nvidia-uvm"
_MISSING_FIX: Final = (
    "on the host, as root: nvidia-modprobe -c 0; in a container: docker run --gpus all …, in Kubernetes "
    "runtimeClassName: nvidia; restart a container that has lost them (systemctl daemon-reload can cause it)"
)


def check_device_files(read: GpuRead, proc_root: Path, dev_root: Path = Path("/dev")) -> Finding:
    """Check that the device files NVML needs exist and are accessible: its control file and one for each GPU.

    None is opened: that would wake a sleeping GPU.
    """
    minors = {gpu.identity.minor: gpu.answered for gpu in read.gpus if gpu.identity.minor is not None}
    minors = minors or dict.fromkeys(read_nvidia_minors(proc_root), False)
    any_answers = any(gpu.answered for gpu in read.gpus)
    names = [_CONTROL, *(f"nvidia{minor}" for minor, answered in sorted(minors.items()) if not answered)]
    missing = [name for name in names if not (dev_root / name).exists()]
    denied = [name for name in names if name not in missing and not _may_open(dev_root / name)]
    if any_answers and _CONTROL in missing:  # WSL has /dev/dxg instead
        return unused("device files", f"NVML answers without {dev_root / _CONTROL}")
    if missing or denied:
        found = "; ".join([*_listed("missing", dev_root, missing), *_listed("access denied", dev_root, denied)])
        fix = _MISSING_FIX if missing else _denied_fix(dev_root / denied[0])
        return degraded("device files", found, fix) if any_answers else blind("device files", found, fix)
    nodes = ", ".join([_CONTROL, *(f"nvidia{minor}" for minor in sorted(minors))])
    uvm = "" if (dev_root / _UVM).exists() else f"; {_UVM} is missing, which programs need and the agent does not"
    return ok("device files", f"{nodes} can be opened{uvm}")


def _may_open(path: Path) -> bool:
    """Whether open(2) would succeed. access(2) checks the file's mode and the cgroup's device rules alike.

    fs/namei.c, ``inode_permission``: it calls ``devcgroup_inode_permission`` for both.
    """
    try:
        return os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids)
    except OSError:
        return False


def _listed(problem: str, dev_root: Path, names: Iterable[str]) -> list[str]:
    nodes = ", ".join(str(dev_root / name) for name in names)
    return [f"{problem}: {nodes}"] if nodes else []


def _denied_fix(path: Path) -> str:
    node = shlex.quote(str(path))
    return (
        f"in a container: restart it, or docker run --device {node} …; on the host: usermod -aG "
        f"$(stat -c %G {node}) USER; to inspect: ls -l {node}"
    )
