"""Where counters persist, and what is logged where they cannot."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from otel_gpu.agent.host import Host
from otel_gpu.agent.sampling import Sampling
from otel_gpu.clock import Clock, ManualClock
from otel_gpu.config import Config, load
from otel_gpu.metrics.catalogue import Kind
from otel_gpu.metrics.series import Collection
from otel_gpu.model import Pod, Report, SourceState
from otel_gpu.sources.proc.source import OWN_PROC
from otel_gpu.state import persistent
from otel_gpu.state.deadline_store import DeadlineStore
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.persistent import PersistentAttributor
from tests.builders import CONTAINER, FakeGpus, FakeProcesses, facts, gpu, gpu_read, listed, process_read, snapshot
from tests.unit.attribution.played import gpu_with
from tests.unit.state.lives import outcome, run

REAL = Host(FakeGpus(gpu_read(gpu())), FakeProcesses(), ())
SIMULATED = replace(REAL, simulated_because="asked for")


def open_attributor(
    config: Config, host: Host, clock: Clock, environment: Mapping[str, str], own_proc: Path = OWN_PROC
) -> PersistentAttributor | None:
    simulated = host.simulated_because is not None
    attributor = persistent.open_attributor(
        config.attribution.options, config.state.directory, clock, environment, simulated=simulated, own_proc=own_proc
    )
    if attributor is not None:
        _opened.append(attributor)
    return attributor


_opened: list[PersistentAttributor] = []


@pytest.fixture(autouse=True)
def closed_afterwards() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def config(*, state_dir: str = "auto") -> Config:
    return load({"state-dir": state_dir}, {}).config


def test_counters_of_a_host_persist_in_the_default_directory(tmp_path: Path) -> None:
    agent = open_attributor(config(), REAL, ManualClock(), {"XDG_STATE_HOME": str(tmp_path)})
    assert agent is not None
    agent.close()
    assert (tmp_path / "otel-gpu/lock").exists()


def test_counters_of_instruments_in_another_service_do_not_persist() -> None:
    assert open_attributor(config(), REAL, ManualClock(), {}) is None


@pytest.mark.parametrize("environment", [{}, {"HOME": "relative"}])
def test_without_a_directory_the_gap_is_marked_and_not_logged(
    environment: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    environment["RUNTIME_DIRECTORY"] = str(tmp_path / "run")
    agent = open_attributor(config(), REAL, ManualClock(), environment)
    assert agent is not None
    report = agent.observe(snapshot(gpu()))
    assert not [source for source in report.sources if source.name == "state"]
    assert (tmp_path / "run/unjournalled").exists()
    assert not caplog.records


def test_with_none_the_gap_is_marked_at_the_first_export(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "RUNTIME_DIRECTORY": str(tmp_path / "run")}
    agent = open_attributor(config(state_dir="none"), REAL, ManualClock(), environment)
    assert agent is not None
    assert list(tmp_path.iterdir()) == []
    agent.observe(replace(snapshot(gpu()), driver=None))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["unjournalled"]
    agent.close()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_with_none_a_mark_that_cannot_be_written_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    environment = {"RUNTIME_DIRECTORY": str(tmp_path / "away/run")}
    agent = open_attributor(config(state_dir="none"), REAL, ManualClock(), environment)
    assert agent is not None
    agent.observe(snapshot(gpu()))
    assert not caplog.records


def test_counters_do_not_fall_after_a_run_with_an_unusable_directory(tmp_path: Path) -> None:
    """The directory has the state of the run before that one."""
    clock, environment = ManualClock(), {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
    state, chosen = tmp_path / "s", config(state_dir=str(tmp_path / "s"))
    sampled(state, clock, range(2), environment=environment).stop()
    state.rename(tmp_path / "kept")
    state.touch()
    sampled(state, clock, range(2, 4), environment=environment).stop()
    state.unlink()
    (tmp_path / "kept").rename(state)
    agent = open_attributor(chosen, REAL, clock, environment)
    assert agent is not None
    assert agent.known_gpus, "the state is there"
    again = sampled(state, clock, range(3, 4), environment=environment, attributor=agent)
    assert again.restored() is None
    again.stop()


def test_a_simulated_host_marks_nothing(tmp_path: Path) -> None:
    environment = {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
    assert open_attributor(config(state_dir="none"), SIMULATED, ManualClock(), environment) is None
    (tmp_path / "s").touch()
    agent = open_attributor(config(state_dir=str(tmp_path / "s")), SIMULATED, ManualClock(), environment)
    assert agent is not None
    assert outcome(agent.observe(snapshot(gpu())))[0] is SourceState.UNAVAILABLE
    assert not (tmp_path / "run").exists()


def test_counters_of_a_simulated_host_persist_only_in_a_directory_that_is_named(tmp_path: Path) -> None:
    assert open_attributor(config(), SIMULATED, ManualClock(), {"HOME": str(tmp_path)}) is None
    agent = open_attributor(config(state_dir=str(tmp_path / "s")), SIMULATED, ManualClock(), {})
    assert agent is not None
    agent.close()


def test_an_unusable_directory_is_a_warning_only_if_it_was_chosen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "otel-gpu").touch()
    environment = {"XDG_STATE_HOME": str(tmp_path), "RUNTIME_DIRECTORY": str(tmp_path / "run")}
    why = f"{tmp_path}/otel-gpu: it is not a directory"
    for chosen in ("auto", str(tmp_path / "otel-gpu")):
        agent = open_attributor(config(state_dir=chosen), REAL, ManualClock(), environment)
        assert agent is not None
        for at_s in (0, 5):
            report = agent.observe(snapshot(gpu(), at_s=at_s))
            assert outcome(report) == (SourceState.UNAVAILABLE, f"nothing is saved: {why}")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert all(why in record.getMessage() for record in caplog.records)


def until_saved(agent: PersistentAttributor) -> Report:
    """The first Report after a checkpoint."""
    for at_s in range(35, 50_000, 20):
        report = run(agent, at_s)
        if outcome(report) == (SourceState.OK, None):
            return report
        time.sleep(0.01)
    raise AssertionError("no checkpoint is written")


def test_a_directory_is_used_as_soon_as_it_is_usable(tmp_path: Path) -> None:
    state, environment = tmp_path / "s", {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
    state.touch()
    agent = open_attributor(config(state_dir=str(state)), REAL, ManualClock(), environment)
    assert agent is not None
    assert outcome(run(agent, 0))[0] is SourceState.UNAVAILABLE
    state.unlink()
    run(agent, 30)
    report = until_saved(agent)
    agent.close()
    again = open_attributor(config(state_dir=str(state)), REAL, ManualClock(), environment)
    assert again is not None
    assert run(again, 60_000).epoch_ns == report.epoch_ns


def test_a_directory_that_hangs_does_not_delay_the_start_and_is_used_when_it_responds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    responds = threading.Event()
    open_now = PrivateDirectory.open

    def slow(path: Path, **how: bool) -> PrivateDirectory:
        if path == tmp_path / "s":
            assert responds.wait(30)
        return open_now(path, **how)

    monkeypatch.setattr(persistent, "DeadlineStore", partial(DeadlineStore, start_s=0.02))
    monkeypatch.setattr(PrivateDirectory, "open", slow)
    environment = {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
    agent = open_attributor(config(state_dir=str(tmp_path / "s")), REAL, ManualClock(), environment)
    assert agent is not None
    why = f"{tmp_path}/s: the disk does not respond"
    assert why in caplog.text
    for at_s in (0, 5):
        assert outcome(run(agent, at_s)) == (SourceState.UNAVAILABLE, f"nothing is saved: {why}")
    responds.set()
    until_saved(agent)  # and does not wait for a lock that it holds itself
    agent.close()


def test_without_a_boot_id_counters_do_not_persist(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = open_attributor(config(state_dir=str(tmp_path / "s")), REAL, ManualClock(), {"A": "b"}, own_proc=tmp_path)
    assert agent is not None
    state, reason = outcome(run(agent, 0, 5))
    assert state is SourceState.UNAVAILABLE
    assert "has no boot id" in (reason or "")
    assert "has no boot id" in caplog.text
    assert not (tmp_path / "s").exists()


# ---------------------------------------------------------------------------- the start of deltas

APART = {"RUNTIME_DIRECTORY": "/nonexistent/run"}
GPUS = [replace(gpu_with(listed(1)), energy_mj=1_000_000 * number, power_limit_w=400.0) for number in range(4)]


def sampled(
    state: Path,
    clock: ManualClock,
    numbers: range,
    pod: Pod | None = None,
    *,
    environment: Mapping[str, str] = APART,
    attributor: PersistentAttributor | None = None,
) -> Sampling:
    """An agent after these cycles."""
    gpus = FakeGpus(*(gpu_read(replace(GPUS[n], taken_at_ns=round(5e9 * n))) for n in numbers))
    host = Host(gpus, FakeProcesses(process_read(facts(1, CONTAINER))), (), pod=pod)
    chosen = config(state_dir=str(state))
    sampling = Sampling(chosen, host, clock, attributor or open_attributor(chosen, host, clock, environment))
    for _ in numbers:
        clock.advance(5)
        sampling.engine.sample()
    return sampling


def energy_j(collection: Collection | None, metric: str) -> float:
    assert collection is not None
    (family,) = (each for each in collection.blocks if each.metric.name == metric)
    assert family.metric.kind is Kind.COUNTER
    return sum(point.value for point in family.points)


def test_restored_counters_equal_the_counters_of_the_earlier_run(tmp_path: Path) -> None:
    clock = ManualClock()
    first = sampled(tmp_path / "s", clock, range(3))
    assert first.restored() is None
    first.stop()
    second = sampled(tmp_path / "s", clock, range(3, 4))
    assert energy_j(second.restored(), "gpu.workload.energy") == energy_j(second.restored(), "hw.energy") == 2000.0
    second.stop()


def test_restored_counters_of_a_sidecar_cover_its_pod_only(tmp_path: Path) -> None:
    clock = ManualClock()
    pod = Pod(uid=CONTAINER.pod_uid)
    sampled(tmp_path / "s", clock, range(3), pod).stop()
    second = sampled(tmp_path / "s", clock, range(3, 4), pod)
    restored = second.restored()
    assert energy_j(restored, "gpu.workload.energy") == 2000.0
    assert restored is not None
    assert "hw.energy" not in {family.metric.name for family in restored.blocks}
    second.stop()
