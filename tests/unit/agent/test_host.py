from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from otel_gpu.agent import host
from otel_gpu.clock import ManualClock
from otel_gpu.config import Config, SourceChoice, load
from otel_gpu.model import SourceState, WorkloadRef
from otel_gpu.sources.base import NameRead
from otel_gpu.sources.names.discovery import DiscoveredSources, SourceDiscovery
from otel_gpu.sources.names.factory import NameSourceFactory
from otel_gpu.sources.nvml import NvmlSource
from otel_gpu.sources.nvml.errors import translate
from otel_gpu.sources.proc.files import FileId, MapsRead, ProcessDir
from tests.proc_tree import UVM, ProcTree


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Settings for a host with one process that uses a GPU."""
    ProcTree(tmp_path / "proc").add(7, fds=["/dev/nvidia0", UVM])
    return load({"proc-root": str(tmp_path / "proc"), "deadline": "100ms"}, {}).config


def from_source(config: Config, source: SourceChoice) -> Config:
    return replace(config, sampling=replace(config.sampling, source=source))


@pytest.fixture
def stuck_maps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reading ``maps`` blocks, as for a process that is stuck in the driver with its memory map locked."""
    released = threading.Event()

    def wait(_directory: ProcessDir, _files: frozenset[FileId], _limit_bytes: int) -> MapsRead:
        released.wait(30)
        return MapsRead(0, 0)

    monkeypatch.setattr(ProcessDir, "uvm_mapping_bytes", wait)
    yield
    released.set()


@pytest.mark.parametrize("one_shot", [True, False])
def test_a_process_stuck_in_the_driver_lacks_its_mappings_and_nothing_else(
    config: Config, stuck_maps: None, one_shot: bool
) -> None:
    read = host.open_procfs(config, ManualClock(), one_shot=one_shot).read([7])
    assert read.processes[7].uvm_open
    assert read.processes[7].uvm_mapping_bytes is None
    assert (read.state, read.unreadable) == (SourceState.OK, {"timed_out": 1})


def test_a_one_shot_read_has_all_processes_at_once(config: Config) -> None:
    tree = ProcTree(config.sampling.proc_root)
    for pid in range(1000, 1300):
        tree.add(pid, fds=["/dev/nvidia0"] if pid == 1299 else ["/dev/null"])
    read = host.open_procfs(config, ManualClock(), one_shot=True).read([])
    assert set(read.processes) == {7, 1299}


# ---------------------------------------------------------------------------- names


class Answers:
    """A name source that records its calls."""

    def __init__(self) -> None:
        self.name = "answers"
        self.calls: list[str] = []

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        self.calls.append("read")
        return NameRead()

    def wait(self, timeout_s: float) -> bool:
        assert 0.0 < timeout_s <= 1.0
        self.calls.append("wait")
        return True

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("one_shot", "calls"), [(True, ["read", "wait"]), (False, [])])
def test_a_one_shot_command_waits_for_names_and_an_agent_does_not(
    config: Config, monkeypatch: pytest.MonkeyPatch, one_shot: bool, calls: list[str]
) -> None:
    source, discovery = Answers(), SourceDiscovery(lambda _: DiscoveredSources(), ManualClock())
    monkeypatch.setattr(NameSourceFactory, "open_all", lambda _: ((source,), discovery))
    opened = host.open_host(config, ManualClock(), one_shot=one_shot)
    opened.gpus.close()
    assert opened.names == (source,)
    assert source.calls == calls
    assert opened.discovery is discovery  # a one-shot command may find a job, and Slurm with it


def test_the_reason_for_a_simulated_host_does_not_suggest_the_demo(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = translate(pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert str(missing).endswith("otel-gpu demo")

    def fail(*_: object) -> None:
        raise missing

    monkeypatch.setattr(NvmlSource, "open", fail)
    found = host.open_host(from_source(config, SourceChoice.AUTO), ManualClock())
    assert found.simulated_because is not None
    assert found.simulated_because.startswith("libnvidia-ml.so.1 is not found: install the NVIDIA driver")
    assert "demo" not in found.simulated_because


def test_a_simulated_host_opens_no_other_name_source(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NameSourceFactory, "open_all", lambda *_, **__: pytest.fail("a name source is opened"))
    opened = host.open_host(from_source(config, SourceChoice.SIM), ManualClock())
    assert [source.name for source in opened.names] == ["names"]
