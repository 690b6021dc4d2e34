"""``otel-gpu once`` as a process, with different NVML libraries."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli import otel_gpu
from tests.e2e.markers import needs_host_pid_namespace
from tests.nvml_stub.build import build
from tests.nvml_stub.world import Listed, World, WorldGpu
from tests.proc_tree import UVM, ProcTree, maps_line, mig_nodes

GIB = 1 << 30
CONTAINER = "c0ffee" + "0" * 58
POD = "11111111-2222-3333-4444-555555555555"


def one_gpu() -> tuple[World, WorldGpu]:
    world = World()
    return world, world.a100({4001: 2 * GIB, 4002: 3 * GIB}, used_bytes=10 * GIB)


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path / "proc")
    tree.set_own_pids()
    tree.add(4001, comm=b"python3", cgroup=f"0::/kubepods/burstable/pod{POD}/{CONTAINER}\n", start_ticks=100)
    tree.add(4002, comm=b"ollama", cgroup="0::/system.slice/ollama.service\n", start_ticks=200)
    return tree


def once_json(
    lib_dir: Path,
    world: World,
    tmp_path: Path,
    proc: ProcTree,
    *flags: str,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    result = otel_gpu(
        "once",
        "--format",
        "json",
        *flags,
        environment={
            **world.environment(lib_dir, tmp_path),
            "HOST_PROC": str(proc.root),
            "OTEL_GPU_ENVIRONMENT": "host",  # the runner may have Docker
            **(environment or {}),
        },
    )
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def by_id(document: dict[str, Any]) -> dict[str, Any]:
    return {workload["id"]: workload for workload in document["workloads"]}


@needs_host_pid_namespace
def test_memory_per_workload_and_process_adds_up(stub_dir: Path, tmp_path: Path, proc: ProcTree) -> None:
    document = once_json(stub_dir, one_gpu()[0], tmp_path, proc)
    (gpu,) = document["gpus"]
    assert (gpu["index"], gpu["uuid"], gpu["name"], gpu["mig"]) == (0, "GPU-one", "NVIDIA A100-SXM4-80GB", None)
    memory = gpu["memory"]
    assert memory == {
        "limit": 80 * GIB,
        "reserved": GIB,
        "measured": 5 * GIB,
        "overcount": 0,
        "inferred": 0,
        "unattributed": 5 * GIB,
        "free": 69 * GIB,
    }
    assert 80_000 <= gpu["energy"]["delta_mj"] <= 400_000  # 100 W for a second, or longer on a busy machine
    workloads = by_id(document)
    assert workloads[CONTAINER]["kind"] == "container"
    assert workloads[CONTAINER]["pod_uid"] == POD
    assert workloads[CONTAINER]["gpus"][0]["memory"]["measured"] == 2 * GIB
    assert workloads["ollama.service"]["kind"] == "systemd_unit"
    assert {(p["pid"], p["name"], p["workload"], p["memory"]) for p in document["processes"]} == {
        (4001, "python3", CONTAINER, 2 * GIB),
        (4002, "ollama", "ollama.service", 3 * GIB),
    }
    assert {p["pid"]: p["start_time"] for p in document["processes"]} == {4001: 1_700_000_001, 4002: 1_700_000_002}
    assert [(s["name"], s["ok"], s["reason"]) for s in document["sources"]] == [
        ("nvml", True, None),
        ("procfs", True, None),
    ]


@needs_host_pid_namespace
def test_the_table_has_the_same_workloads(stub_dir: Path, tmp_path: Path, proc: ProcTree) -> None:
    environment = one_gpu()[0].environment(stub_dir, tmp_path)
    result = otel_gpu("once", "--proc-root", str(proc.root), environment=environment)
    assert result.returncode == 0
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    line = next(line for line in result.stdout.splitlines() if "ollama.service" in line)
    assert line.split()[:6] == ["ollama.service", "systemd", "unit", "0", "3.0", "GiB"]


def test_memory_of_an_unknown_pid_is_measured_and_unidentified(stub_dir: Path, tmp_path: Path, proc: ProcTree) -> None:
    world, gpu = one_gpu()
    gpu.compute(0, [Listed(4001, 2 * GIB), Listed(999_999, 4 * GIB)])
    document = once_json(stub_dir, world, tmp_path, proc)
    assert document["gpus"][0]["memory"]["measured"] == 6 * GIB
    assert by_id(document)["unidentified"]["gpus"][0]["memory"]["measured"] == 4 * GIB
    unknown = next(p for p in document["processes"] if p["pid"] == 999_999)
    assert (unknown["name"], unknown["start_time"], unknown["workload"]) == (None, None, "unidentified")


def test_a_process_that_is_not_listed_is_shown_without_measured_memory(
    stub_dir: Path, tmp_path: Path, proc: ProcTree
) -> None:
    proc.add(
        4003,
        comm=b"ollama_llama_se",
        cgroup=f"0::/docker/{'d' * 64}\n",
        fds=["/dev/nvidia0", UVM],
        maps=maps_line(0, GIB),
    )
    proc.add(4004, comm=b"dcgm", cgroup="0::/system.slice/dcgm.service\n", fds=["/dev/nvidia0", "/dev/nvidiactl"])
    workloads = by_id(once_json(stub_dir, one_gpu()[0], tmp_path, proc))
    assert workloads["d" * 64]["gpus"][0]["memory"]["measured"] is None
    assert "dcgm.service" not in workloads  # a monitor opens the device without CUDA


def test_unexplained_memory_of_a_mig_instance_is_inferred_for_its_process(
    stub_dir: Path, tmp_path: Path, proc: ProcTree
) -> None:
    world = World()
    gpu = world.gpu("GPU-one", name="NVIDIA H100 80GB HBM3", minor=1)
    gpu.typical()
    gpu.memory(0, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=10 * GIB)
    gpu.mig_mode(0, enabled=True)
    for slot, (gpu_instance_id, used_gib, measured_gib) in enumerate(((3, 2, 2), (5, 3, 0), (9, 4, 0))):
        instance = gpu.mig(0, slot, uuid=f"MIG-{gpu_instance_id}", gpu_instance_id=gpu_instance_id)
        instance.memory(0, total_bytes=10 * GIB, used_bytes=used_gib * GIB)
        instance.compute(0, [Listed(4001, measured_gib * GIB)] if measured_gib else [])
    proc.set_mig_minors()
    cuda = ["/dev/nvidiactl", UVM, "/dev/nvidia1"]
    proc.add(4003, cgroup=f"0::/docker/{'d' * 64}\n", fds=[*cuda, *mig_nodes((1, 9, 0))])
    proc.add(4004, cgroup=f"0::/docker/{'e' * 64}\n", fds=[*cuda, *mig_nodes((1, 3, 0))])
    document = once_json(stub_dir, world, tmp_path, proc)
    workloads = by_id(document)
    (part,) = workloads["d" * 64]["gpus"]
    assert (part["uuid"], part["mig"]) == ("GPU-one", "MIG-9")
    assert part["memory"] == {"measured": None, "inferred": 4 * GIB, "confidence": 1.0}
    instances = {mig["uuid"]: mig["memory"] for mig in document["gpus"][0]["mig"]}
    assert {uuid: (split["inferred"], split["unattributed"]) for uuid, split in instances.items()} == {
        "MIG-3": (0, 0),
        "MIG-5": (0, 3 * GIB),
        "MIG-9": (4 * GIB, 0),
    }
    assert "e" * 64 not in workloads  # its instance has no unexplained memory


@pytest.mark.long
@pytest.mark.parametrize(
    ("without", "path", "expected"),
    [
        (("nvmlDeviceGetMemoryInfo_v2",), ("memory", "reserved"), None),
        (("nvmlDeviceGetMemoryInfo_v2",), ("memory", "unattributed"), 6 * GIB),  # v1 includes reserved memory
        (("nvmlDeviceGetTemperatureV",), ("temperature_c",), 34),
        (("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), ("temperature_c",), None),
        (
            ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"),
            ("energy", "delta_mj"),
            None,
        ),
        (("nvmlDeviceGetFieldValues",), ("memory", "measured"), 5 * GIB),
        (("nvmlDeviceGetMPSComputeRunningProcesses_v3",), ("memory", "measured"), 5 * GIB),
        (("nvmlDeviceGetComputeRunningProcesses_v3",), ("memory", "measured"), 5 * GIB),  # by _v2
        (("nvmlDeviceGetMigMode",), ("mig",), None),
        (("nvmlEventSetCreate", "nvmlDeviceGetProcessUtilization"), ("memory", "measured"), 5 * GIB),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_driver_without_some_functions_gives_all_other_figures(
    without: tuple[str, ...], path: tuple[str, ...], expected: object, tmp_path: Path, proc: ProcTree
) -> None:
    document = once_json(build(without=without), one_gpu()[0], tmp_path, proc)
    value: Any = document["gpus"][0]
    for key in path:
        value = value[key]
    assert value == expected
    assert document["sources"][0] == {"name": "nvml", "ok": True, "reason": None, "blind": False}


def test_process_entries_of_32_bytes_are_read_correctly(tmp_path: Path, proc: ProcTree) -> None:
    document = once_json(build(process_info_bytes=32), one_gpu()[0], tmp_path, proc)
    assert sorted((p["pid"], p["memory"]) for p in document["processes"]) == [(4001, 2 * GIB), (4002, 3 * GIB)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "driver is not loaded"), (18, "restart the agent"), (999, "/dev/nvidia*"), (4, "root"), (12, "libnvidia-ml")],
)
def test_a_failing_nvml_initialisation_is_one_line_and_exit_code_1(
    stub_dir: Path, tmp_path: Path, code: int, words: str
) -> None:
    world, _ = one_gpu()
    world.error(code, function="nvmlInitWithFlags")
    result = otel_gpu(
        "once",
        environment=world.environment(stub_dir, tmp_path),
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_a_failed_gpu_is_a_source_error_and_does_not_affect_another(
    stub_dir: Path, tmp_path: Path, proc: ProcTree
) -> None:
    world, _ = one_gpu()
    lost = world.gpu("GPU-lost")
    lost.typical()
    world.error(15, on=lost, function="nvmlDeviceGetUtilizationRates")
    document = once_json(stub_dir, world, tmp_path, proc)
    first, second = document["gpus"]
    assert first["memory"]["measured"] == 5 * GIB
    assert second["uuid"] == "GPU-lost"
    assert second["memory"]["limit"] is None
    nvml = document["sources"][0]
    assert nvml["ok"] is False
    assert "GPU 1: GPU is lost" in nvml["reason"]


def test_once_ends_although_a_gpu_hangs(stub_dir: Path, tmp_path: Path, proc: ProcTree) -> None:
    world, _ = one_gpu()
    hung = world.gpu("GPU-hung")
    hung.typical()
    world.hang(on=hung, function="nvmlDeviceGetUtilizationRates")
    document = once_json(stub_dir, world, tmp_path, proc, "--deadline", "1s")
    assert document["gpus"][0]["memory"]["measured"] == 5 * GIB
    assert "GPU 1: no answer" in document["sources"][0]["reason"]


def test_an_empty_proc_root_is_a_source_error_and_memory_is_still_measured(stub_dir: Path, tmp_path: Path) -> None:
    empty = ProcTree(tmp_path / "proc")
    (empty.root / "stat").unlink()
    empty.remove(1)
    document = once_json(stub_dir, one_gpu()[0], tmp_path, empty)
    assert document["gpus"][0]["memory"]["measured"] == 5 * GIB
    procfs = document["sources"][1]
    assert procfs["ok"] is False
    assert "--proc-root" in procfs["reason"]


@needs_host_pid_namespace
def test_without_a_boot_time_only_start_times_are_unknown(stub_dir: Path, tmp_path: Path, proc: ProcTree) -> None:
    (proc.root / "stat").unlink()
    document = once_json(stub_dir, one_gpu()[0], tmp_path, proc)
    assert {(p["pid"], p["name"], p["workload"], p["start_time"]) for p in document["processes"]} == {
        (4001, "python3", CONTAINER, None),
        (4002, "ollama", "ollama.service", None),
    }
    assert document["sources"][1]["reason"] == f"start times are unknown: {proc.root}/stat has no readable btime"


@needs_host_pid_namespace
def test_a_process_with_an_invalid_cgroup_is_unidentified(stub_dir: Path, tmp_path: Path, proc: ProcTree) -> None:
    proc.write("4002/cgroup", "rubbish")
    document = once_json(stub_dir, one_gpu()[0], tmp_path, proc)
    assert {workload["id"] for workload in document["workloads"]} == {CONTAINER, "unidentified"}
    assert document["sources"][1] == {"name": "procfs", "ok": True, "reason": None, "blind": False}


MINIMAL_LIBRARY = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
static int token;
int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = &token; return i ? 2 : 0; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) { (void)h; strncpy(s, "GPU-foreign", n); return 0; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) { (void)h; strncpy(s, "Foreign", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) { (void)h; m->total = 1000; m->used = 600; m->free = 400; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, process_t *p) {
    (void)h;
    if (!p || *n < 1) { *n = 1; return 7; }
    *n = 1;
    p[0].pid = 4001; p[0].used = 250; p[0].gi = p[0].ci = 0xffffffffu;
    return 0;
}
"""


@needs_host_pid_namespace
def test_a_library_with_the_minimum_of_functions_is_enough(tmp_path: Path, proc: ProcTree) -> None:
    source = tmp_path / "foreign.c"
    source.write_text(MINIMAL_LIBRARY)
    lib_dir = tmp_path / "lib"
    lib_dir.mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", lib_dir / "libnvidia-ml.so.1", source], check=True, timeout=60)
    document = once_json(lib_dir, World(), tmp_path, proc)
    (gpu,) = document["gpus"]
    assert (gpu["uuid"], gpu["power_w"], gpu["utilization"], gpu["temperature_c"]) == ("GPU-foreign", None, None, None)
    assert gpu["memory"]["limit"] == 1000
    assert gpu["memory"]["measured"] == 250
    assert gpu["memory"]["unattributed"] == 350
    assert gpu["memory"]["reserved"] is None
    assert by_id(document)[CONTAINER]["gpus"][0]["memory"]["measured"] == 250
    assert document["sources"][0] == {"name": "nvml", "ok": True, "reason": None, "blind": False}
