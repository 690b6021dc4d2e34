"""Files of ``/proc``: of processes, which choose their names, mappings and descriptors, and of the driver."""

from __future__ import annotations

import io
import random
from functools import partial
from typing import Final

from otel_gpu.sources.names.slurm import parse_job
from otel_gpu.sources.nvml.system import parse_mapped_library
from otel_gpu.sources.proc.files import (
    MAPS_BLOCK_BYTES,
    BoundedText,
    FileId,
    is_root_cgroup,
    lines_containing,
    parse_btime,
    parse_device_link,
    parse_fd_size,
    parse_majors,
    parse_maps,
    parse_stat,
)
from otel_gpu.sources.proc.host import parse_gpu_information, parse_mig_minors, parse_namespace_inode, parse_nspid
from tests.fuzz.target import ODD_BYTES, Target, mutated, unfit
from tests.proc_tree import maps_line, stat_text

STATS: Final = (
    stat_text(7, b"python3"),
    stat_text(1, b"a) S 1 (b", start_ticks=2**64 - 1),
    stat_text(99, b"\xff\n)", state="Z", threads=4),
    stat_text(2, b"kthreadd", flags=0x00208040),
)
MAPS: Final = (
    "".join(maps_line(0x7F0000000000 + (at << 30), 1 << 21) for at in range(3)).encode(),
    maps_line(0x200000000, 1 << 33, "/dev/nvidia-uvm (deleted)").encode(),
    maps_line(0x1000, 4096, "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.14").encode(),
    b"7ffd1000-7ffd2000 rw-p 00000000 00:00 0                          [stack]\n",
)
STATUSES: Final = (
    b"Name:\tpython3\nPid:\t7\nFDSize:\t256\nNSpid:\t7\t3\t1\nThreads:\t4\n",
    b"FDSize:\t0\nNSpid:\t1\n",
    b"cpu  1 2 3\nbtime 1700000000\nprocesses 5\n",
    b"pid:[4026531836]",
    b"Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-5c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10\nDevice Minor: \t 0\n",
    b"config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n",
    b"0::/\n1:name=systemd:/\n",
)
HUGE_LIMIT_BYTES: Final = 1 << 17
UVM_FILES: Final = frozenset({FileId(0, 5, 512)})
DEVICES: Final = (
    b"Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n  7 loop\n",
    b"Character devices:\n195 nvidia-frontend\n234 nvidia-caps\n",
)
LINKS: Final = (
    b"/dev/nvidia0", b"/dev/nvidiactl", b"/dev/nvidia-uvm", b"/run/x/dev/nvidia12 (deleted)",
    b"/dev/nvidia-caps/nvidia-cap12", b"socket:[123]", b"/home/nvidia/nvidia0", b"anon_inode:[eventfd]",
)  # fmt: skip
ENVIRONMENTS: Final = (
    b"PATH=/bin\0SLURM_JOB_ID=7\0SLURM_JOB_NAME=train\0SLURM_JOB_GPUS=0-3,5\0SLURM_JOB_NUM_NODES=1\0",
    b"SLURM_JOB_ID=7\0SLURM_STEP_GPUS=0,1\0SLURM_JOB_USER=u\0CUDA_VISIBLE_DEVICES=MIG-7c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10\0",
)


def check_stat(data: bytes) -> str | None:
    stat = parse_stat(data)
    if stat is None:
        return None
    if min(stat.start_ticks, stat.threads, stat.flags) < 0 or stat.comm not in data:
        return f"{stat} is not in the text"
    return None


def check_maps(data: bytes) -> str | None:
    mapped = parse_maps(lines_containing(b"nvidia-uvm", BoundedText(io.BytesIO(data), 4096).blocks()), UVM_FILES)
    parse_mapped_library(data.decode("utf-8", "replace"))
    if mapped < 0 or (mapped and b"nvidia-uvm" not in data):
        return f"{mapped} bytes are mapped"
    return None


def check_huge_maps(data: bytes) -> str | None:
    """Maps of any length: no more than the limit is read, and a sum is given only if all was."""
    text = BoundedText(io.BytesIO(data), HUGE_LIMIT_BYTES)
    mapped = parse_maps(lines_containing(b"nvidia-uvm", text.blocks()), UVM_FILES)
    if text.read_bytes > HUGE_LIMIT_BYTES + MAPS_BLOCK_BYTES:
        return f"{text.read_bytes} bytes were read"
    if text.is_cut is (text.read_bytes == len(data)):
        return f"{text.read_bytes} of {len(data)} bytes were read, and is_cut is {text.is_cut}"
    return f"{mapped} bytes are mapped" if mapped < 0 else None


def check_status(data: bytes) -> str | None:
    text = data.decode("utf-8", "replace")
    size, boot = parse_fd_size(data), parse_btime(data)
    found = (
        (size, "FDSize"), (boot, "btime"), (parse_namespace_inode(text), ":["), (parse_gpu_information(text), "GPU-"),
        (parse_nspid(text) or None, "NSpid"), (is_root_cgroup(text) or None, ":/"),
    )  # fmt: skip
    for value, needed in found:
        if value is not None and needed not in text:
            return f"{value} without {needed!r}"
    if any(pid < 0 for pid in parse_nspid(text)) or any(minor < 0 for minor in parse_mig_minors(text)):
        return "a number is below zero"
    return "a number is below zero" if (size or 0) < 0 or (boot or 0) < 0 else None


def check_devices(data: bytes) -> str | None:
    majors = parse_majors(data.decode("ascii", "replace"))
    return f"{majors} without the driver" if majors and b"nvidia" not in data else None


def check_link(data: bytes) -> str | None:
    node = parse_device_link(data.decode("utf-8", "surrogateescape"))
    return f"{node} is no NVIDIA node" if node is not None and b"/dev/nvidia" not in data else None


def check_environment(data: bytes) -> str | None:
    job = parse_job(data)
    if job is None:
        return None
    texts = [job.names.title, *(value for _, value in job.names.declared)]
    return next((wrong for text in texts if (wrong := unfit(text))), None)


def _from(examples: tuple[bytes, ...], *pieces: bytes) -> partial[bytes]:
    return partial(_made, examples=examples, pieces=(*ODD_BYTES, *pieces))


def _huge(rng: random.Random, examples: tuple[bytes, ...]) -> bytes:
    """A text of up to half a MiB: a line as long as that, or many."""
    data = mutated(rng, examples)
    at = rng.randrange(len(data) + 1)
    length = rng.choice((1, 7, len(data)))
    return data[:at] + data[at : at + length] * (rng.randrange(1 << 19) // max(1, length)) + data[at:]


def _made(rng: random.Random, examples: tuple[bytes, ...], pieces: tuple[bytes, ...]) -> bytes:
    return mutated(rng, examples, pieces)


TARGETS: Final = (
    Target("proc-stat", _from(STATS, b"(", b")", b") S 1", b" "), check_stat),
    Target("proc-maps", _from(MAPS, b"/dev/nvidia-uvm", b" (deleted)", b"-", b"f" * 17), check_maps),
    Target("proc-maps-huge", partial(_huge, examples=MAPS), check_huge_maps),
    Target("proc-environ-huge", partial(_huge, examples=ENVIRONMENTS), check_environment),
    Target("proc-status", _from(STATUSES, b"NSpid:\t", b"FDSize:\t", b"btime ", b"gpu", b"/access "), check_status),
    Target("proc-devices", _from(DEVICES, b"nvidia", b"Block devices:", b"  "), check_devices),
    Target("proc-fd", _from(LINKS, b"/dev/", b"nvidia", b" (deleted)"), check_link),
    Target("proc-environ", _from(ENVIRONMENTS, b"SLURM_JOB_ID=", b"-", b"SLURM_JOB_GPUS="), check_environment),
)
