from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_gpu.doctor.devices import examine_devices
from otel_gpu.doctor.findings import Finding, Verdict
from otel_gpu.model import SourceState
from otel_gpu.sources.base import GpuRead
from tests.builders import failed_gpu, gpu_read
from tests.proc_tree import ProcTree
from tests.unit.doctor.hosts import complete

NOTHING = GpuRead(state=SourceState.UNAVAILABLE, reason="NVML: unknown error", errors=1)


class Nodes:
    """A directory with files in place of device nodes, and a /proc in which the driver tells of its GPUs."""

    def __init__(self, root: Path) -> None:
        self.dev, self._proc = root / "dev", ProcTree(root / "proc")
        self.dev.mkdir()

    def have(self, *names: str, mode: int = 0o666) -> None:
        for name in names:
            (self.dev / name).touch()
            (self.dev / name).chmod(mode)

    def drive(self, *minors: int) -> None:
        for minor in minors:
            self._proc.add_gpu(f"0000:{minor:02x}:00.0", minor, f"GPU-{minor:08x}-1111-2222-3333-444444444444")

    def examined(self, read: GpuRead) -> Finding:
        return examine_devices(read, self._proc.root, self.dev)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_nodes_that_may_be_opened_are_well(nodes: Nodes) -> None:
    nodes.have("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm")
    found = nodes.examined(gpu_read(complete(0), complete(1)))
    assert found == Finding("device files", Verdict.OK, "nvidiactl, nvidia0, nvidia1 may be opened")


def test_the_agent_needs_no_uvm_and_says_that_there_is_none(nodes: Nodes) -> None:
    nodes.have("nvidiactl", "nvidia0")
    found = nodes.examined(gpu_read(complete(0)))
    assert found.verdict is Verdict.OK
    assert found.found.endswith("there is no nvidia-uvm, which programs need and the agent does not")


def test_without_nodes_and_without_an_answer_attribution_is_blind_with_the_exact_fix(nodes: Nodes) -> None:
    nodes.drive(0, 1)
    found = nodes.examined(NOTHING)
    assert found.verdict is Verdict.BLIND
    assert found.found == "not there: " + ", ".join(
        str(nodes.dev / name) for name in ("nvidiactl", "nvidia0", "nvidia1")
    )
    assert found.fix is not None
    assert "docker run --gpus all" in found.fix
    assert "nvidia-modprobe" in found.fix


def test_where_nvml_answers_without_nodes_none_is_missed(nodes: Nodes) -> None:
    """WSL has another device, and NVML there talks to that."""
    assert nodes.examined(gpu_read(complete(0))).verdict is Verdict.UNUSED


def test_a_node_that_one_of_two_gpus_lacks_degrades(nodes: Nodes) -> None:
    nodes.have("nvidiactl", "nvidia0")
    found = nodes.examined(gpu_read(complete(0), failed_gpu(1)))
    assert (found.verdict, found.found) == (Verdict.DEGRADED, f"not there: {nodes.dev / 'nvidia1'}")


def test_a_node_that_may_not_be_opened_is_blindness_with_its_own_fix(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.have("nvidiactl")
    monkeypatch.setattr("otel_gpu.doctor.devices._may_open", lambda _: False)
    found = nodes.examined(NOTHING)
    assert (found.verdict, found.found) == (Verdict.BLIND, f"may not be opened: {nodes.dev / 'nvidiactl'}")
    assert found.fix is not None
    assert f"--device {nodes.dev / 'nvidiactl'}" in found.fix


def test_no_node_is_opened(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wake a GPU that sleeps, and may hang."""
    nodes.have("nvidiactl", "nvidia0")
    opened: list[str] = []
    real = os.open

    def noting(path: str, *more: int, **named: int) -> int:
        opened.append(str(path))
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", noting)
    nodes.examined(gpu_read(complete(0)))
    assert [path for path in opened if str(nodes.dev) in path] == []
