from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_gpu.doctor.findings import Finding, Verdict
from otel_gpu.doctor.gpus import check_device_files
from otel_gpu.model import SourceState
from otel_gpu.sources.base import GpuRead
from tests.builders import failed_gpu, gpu_read
from tests.proc_tree import ProcTree
from tests.unit.doctor.hosts import complete_gpu

NOTHING = GpuRead(state=SourceState.UNAVAILABLE, reason="NVML: unknown error", errors=1)


class Nodes:
    """A directory of plain files that stand for device nodes, and a /proc with the driver's GPUs."""

    def __init__(self, root: Path) -> None:
        self.dev, self._proc = root / "dev", ProcTree(root / "proc")
        self.dev.mkdir()

    def create(self, *names: str, mode: int = 0o666) -> None:
        for name in names:
            (self.dev / name).touch()
            (self.dev / name).chmod(mode)

    def add_gpus(self, *minors: int) -> None:
        for minor in minors:
            self._proc.add_gpu(f"0000:{minor:02x}:00.0", minor, f"GPU-{minor:08x}-1111-2222-3333-444444444444")

    def check(self, read: GpuRead) -> Finding:
        return check_device_files(read, self._proc.root, self.dev)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_nodes_that_can_be_opened_are_ok(nodes: Nodes) -> None:
    nodes.create("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm")
    found = nodes.check(gpu_read(complete_gpu(0), complete_gpu(1)))
    assert found == Finding("device files", Verdict.OK, "nvidiactl, nvidia0, nvidia1 can be opened")


def test_a_missing_uvm_node_is_reported_and_is_ok(nodes: Nodes) -> None:
    nodes.create("nvidiactl", "nvidia0")
    found = nodes.check(gpu_read(complete_gpu(0)))
    assert found.verdict is Verdict.OK
    assert found.found.endswith("nvidia-uvm is missing, which programs need and the agent does not")


def test_missing_nodes_are_blind_if_no_gpu_answers(nodes: Nodes) -> None:
    nodes.add_gpus(0, 1)
    found = nodes.check(NOTHING)
    assert found.verdict is Verdict.BLIND
    assert found.found == "missing: " + ", ".join(str(nodes.dev / name) for name in ("nvidiactl", "nvidia0", "nvidia1"))
    assert "docker run --gpus all" in (found.fix or "")
    assert "nvidia-modprobe" in (found.fix or "")


def test_missing_nodes_are_unused_if_nvml_answers_without_them(nodes: Nodes) -> None:
    """WSL has another device, which NVML uses there."""
    assert nodes.check(gpu_read(complete_gpu(0))).verdict is Verdict.UNUSED


def test_a_missing_node_of_one_of_two_gpus_is_degraded(nodes: Nodes) -> None:
    nodes.create("nvidiactl", "nvidia0")
    found = nodes.check(gpu_read(complete_gpu(0), failed_gpu(1)))
    assert (found.verdict, found.found) == (Verdict.DEGRADED, f"missing: {nodes.dev / 'nvidia1'}")


def test_a_node_without_access_is_blind_with_its_own_fix(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.create("nvidiactl")
    monkeypatch.setattr("otel_gpu.doctor.gpus._may_open", lambda _: False)
    found = nodes.check(NOTHING)
    assert (found.verdict, found.found) == (Verdict.BLIND, f"access denied: {nodes.dev / 'nvidiactl'}")
    assert f"--device {nodes.dev / 'nvidiactl'}" in (found.fix or "")


def test_no_node_is_opened(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a node wakes a sleeping GPU and may block."""
    nodes.create("nvidiactl", "nvidia0")
    opened: list[str] = []
    real = os.open

    def recording_open(path: str, *args: int, **kwargs: int) -> int:
        opened.append(str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", recording_open)
    nodes.check(gpu_read(complete_gpu(0)))
    assert [path for path in opened if str(nodes.dev) in path] == []
