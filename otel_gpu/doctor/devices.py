"""What the doctor says of the driver's device files. None is opened: that would wake a GPU that sleeps."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from otel_gpu.doctor.findings import Finding, blind, degraded, ok, unused
from otel_gpu.sources.base import GpuRead
from otel_gpu.sources.proc.host import read_nvidia_minors

_CONTROL: Final = "nvidiactl"
_UVM: Final = "nvidia-uvm"
_MISSING_FIX: Final = (
    "on the host, as root: nvidia-modprobe -c 0; in a container: docker run --gpus all …, in Kubernetes "
    "runtimeClassName: nvidia; one that had them: start it anew, systemctl daemon-reload takes them away"
)


def examine_devices(read: GpuRead, proc_root: Path, dev_root: Path = Path("/dev")) -> Finding:
    """Judge whether the nodes of the driver are there and may be opened: NVML needs its own and one for each GPU."""
    numbers = {gpu.identity.minor: gpu.answered for gpu in read.gpus if gpu.identity.minor is not None}
    numbers = numbers or dict.fromkeys(read_nvidia_minors(proc_root), False)
    answers = any(gpu.answered for gpu in read.gpus)
    names = [_CONTROL, *(f"nvidia{number}" for number, answered in sorted(numbers.items()) if not answered)]
    missing = [name for name in names if not (dev_root / name).exists()]
    closed = [name for name in names if name not in missing and not _may_open(dev_root / name)]
    if answers and _CONTROL in missing:  # WSL has /dev/dxg instead
        return unused("device files", f"NVML answers without {dev_root / _CONTROL}")
    if missing or closed:
        found = "; ".join([*_told("not there", dev_root, missing), *_told("may not be opened", dev_root, closed)])
        fix = _MISSING_FIX if missing else _closed_fix(dev_root / closed[0])
        return degraded("device files", found, fix) if answers else blind("device files", found, fix)
    return ok("device files", _all_well(numbers, dev_root))


def _may_open(path: Path) -> bool:
    """Whether open(2) would be allowed: access(2) asks the same of the file's mode and of the cgroup's devices.

    fs/namei.c, ``inode_permission``: it calls ``devcgroup_inode_permission`` for both.
    """
    try:
        return os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids)
    except OSError:
        return False


def _told(what: str, dev_root: Path, names: Iterable[str]) -> list[str]:
    nodes = ", ".join(str(dev_root / name) for name in names)
    return [f"{what}: {nodes}"] if nodes else []


def _closed_fix(path: Path) -> str:
    node = shlex.quote(str(path))
    return (
        f"in a container: docker run --device {node} …, or start it anew; on the host: usermod -aG "
        f"$(stat -c %G {node}) USER; what it is: ls -l {node}"
    )


def _all_well(numbers: Iterable[int], dev_root: Path) -> str:
    nodes = ", ".join([_CONTROL, *(f"nvidia{number}" for number in sorted(numbers))])
    uvm = "" if (dev_root / _UVM).exists() else f"; there is no {_UVM}, which programs need and the agent does not"
    return f"{nodes} may be opened{uvm}"
