"""Whether counters are kept, and what is said where they cannot be."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.config import Config, load
from otel_gpu.host import Host
from otel_gpu.keeping import open_keeper
from otel_gpu.metrics.catalogue import Kind
from otel_gpu.metrics.collection import Collection
from otel_gpu.model import Pod, SourceState
from otel_gpu.sampling import Sampling
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.keeper import Keeper
from tests.builders import CONTAINER, FakeGpus, FakeProcesses, facts, gpu, gpu_read, listed, process_read, snapshot
from tests.unit.attribution.played import gpu_with
from tests.unit.state.lives import outcome, run

REAL = Host(FakeGpus(gpu_read(gpu())), FakeProcesses(), ())
SIMULATED = replace(REAL, simulated_because="asked for")


def config(*, state_dir: str = "auto") -> Config:
    return load({"state-dir": state_dir}, {}).config


def test_a_real_hosts_counters_are_kept_where_they_belong(tmp_path: Path) -> None:
    keeper = open_keeper(config(), REAL, ManualClock(), {"XDG_STATE_HOME": str(tmp_path)})
    assert keeper is not None
    keeper.close()
    assert (tmp_path / "otel-gpu/lock").exists()


def test_instruments_in_another_service_keep_and_note_nothing() -> None:
    assert open_keeper(config(), REAL, ManualClock(), {}) is None


@pytest.mark.parametrize("environment", [{}, {"HOME": "relative"}])
def test_without_a_place_nothing_is_kept_which_is_noted_and_nothing_said(
    environment: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    environment["RUNTIME_DIRECTORY"] = str(tmp_path / "run")
    keeper = open_keeper(config(), REAL, ManualClock(), environment)
    assert keeper is not None
    told = keeper.observe(snapshot(gpu()))
    assert not [source for source in told.sources if source.name == "state"]
    assert (tmp_path / "run/unjournalled").exists()
    assert not caplog.records


def test_none_is_none_and_noted_with_the_first_figures(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "RUNTIME_DIRECTORY": str(tmp_path / "run")}
    keeper = open_keeper(config(state_dir="none"), REAL, ManualClock(), environment)
    assert keeper is not None
    assert list(tmp_path.iterdir()) == []
    keeper.observe(replace(snapshot(gpu()), driver=None))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["unjournalled"]
    keeper.close()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_that_nothing_is_kept_because_nobody_wants_it_is_noted_or_not_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    environment = {"RUNTIME_DIRECTORY": str(tmp_path / "away/run")}
    keeper = open_keeper(config(state_dir="none"), REAL, ManualClock(), environment)
    assert keeper is not None
    keeper.observe(snapshot(gpu()))
    assert not caplog.records


def test_counters_that_were_told_without_a_place_for_them_do_not_fall_when_there_is_one_again(tmp_path: Path) -> None:
    """A state directory that could not be used for one run: what is in it is of the run before that."""
    clock, environment = ManualClock(), {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
    state, chosen = tmp_path / "s", config(state_dir=str(tmp_path / "s"))
    sampled(state, clock, range(2), environment=environment).stop()
    state.rename(tmp_path / "kept")
    state.touch()
    sampled(state, clock, range(2, 4), environment=environment).stop()
    state.unlink()
    (tmp_path / "kept").rename(state)
    keeper = open_keeper(chosen, REAL, clock, environment)
    assert keeper is not None
    assert keeper.known_gpus, "it is there"
    again = sampled(state, clock, range(3, 4), environment=environment, keeper=keeper)
    assert again.restored() is None
    again.stop()


def test_of_a_simulated_host_nothing_is_noted(tmp_path: Path) -> None:
    environment = {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
    assert open_keeper(config(state_dir="none"), SIMULATED, ManualClock(), environment) is None
    (tmp_path / "s").touch()
    keeper = open_keeper(config(state_dir=str(tmp_path / "s")), SIMULATED, ManualClock(), environment)
    assert keeper is not None
    assert outcome(keeper.observe(snapshot(gpu())))[0] is SourceState.UNAVAILABLE
    assert not (tmp_path / "run").exists()


def test_a_simulated_hosts_counters_are_kept_only_where_it_is_said_where(tmp_path: Path) -> None:
    assert open_keeper(config(), SIMULATED, ManualClock(), {"HOME": str(tmp_path)}) is None
    keeper = open_keeper(config(state_dir=str(tmp_path / "s")), SIMULATED, ManualClock(), {})
    assert keeper is not None
    keeper.close()


def test_a_place_that_cannot_be_used_is_told_of_and_warned_of_if_somebody_chose_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "otel-gpu").touch()
    environment = {"XDG_STATE_HOME": str(tmp_path), "RUNTIME_DIRECTORY": str(tmp_path / "run")}
    why = f"{tmp_path}/otel-gpu: it is no directory"
    for chosen in ("auto", str(tmp_path / "otel-gpu")):
        keeper = open_keeper(config(state_dir=chosen), REAL, ManualClock(), environment)
        assert keeper is not None
        for at_s in (0, 5):
            told = keeper.observe(snapshot(gpu(), at_s=at_s))
            assert outcome(told) == (SourceState.UNAVAILABLE, f"nothing is saved: {why}")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert all(why in record.getMessage() for record in caplog.records)


def test_a_place_is_used_as_soon_as_it_can_be(tmp_path: Path) -> None:
    state, environment = tmp_path / "s", {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
    state.touch()
    keeper = open_keeper(config(state_dir=str(state)), REAL, ManualClock(), environment)
    assert keeper is not None
    assert outcome(run(keeper, 0))[0] is SourceState.UNAVAILABLE
    state.unlink()
    run(keeper, 30)
    told = run(keeper, 35)
    assert outcome(told) == (SourceState.OK, None)
    keeper.close()
    again = open_keeper(config(state_dir=str(state)), REAL, ManualClock(), environment)
    assert again is not None
    assert run(again, 40).epoch_ns == told.epoch_ns


def test_a_place_that_does_not_answer_keeps_the_agent_from_nothing_and_is_used_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    open_now = PrivateDirectory.open

    def slow(path: Path, **how: bool) -> PrivateDirectory:
        if path == tmp_path / "s":
            assert go_on.wait(30)
        return open_now(path, **how)

    monkeypatch.setattr("otel_gpu.keeping.START_S", 0.02)
    monkeypatch.setattr(PrivateDirectory, "open", slow)
    environment = {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
    keeper = open_keeper(config(state_dir=str(tmp_path / "s")), REAL, ManualClock(), environment)
    assert keeper is not None
    why = f"{tmp_path}/s: the disk does not answer"
    assert why in caplog.text
    for at_s in (0, 5):
        assert outcome(run(keeper, at_s)) == (SourceState.UNAVAILABLE, f"nothing is saved: {why}")
    go_on.set()
    for at_s in range(10, 60_000, 20):
        told = outcome(run(keeper, at_s))
        if told[0] is SourceState.OK:
            break
        time.sleep(0.01)
    assert told == (SourceState.OK, None), "it has the lock, and not against itself"
    keeper.close()


def test_without_a_boot_id_nothing_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper = open_keeper(config(state_dir=str(tmp_path / "s")), REAL, ManualClock(), {"A": "b"}, own_proc=tmp_path)
    assert keeper is not None
    state, reason = outcome(run(keeper, 0, 5))
    assert state is SourceState.UNAVAILABLE
    assert "does not tell which boot this is" in (reason or "")
    assert "does not tell which boot this is" in caplog.text
    assert not (tmp_path / "s").exists()


# ---------------------------------------------------------------------------- where deltas begin

APART = {"RUNTIME_DIRECTORY": "/nonexistent/run"}
GPUS = [replace(gpu_with(listed(1)), energy_mj=1_000_000 * number, power_limit_w=400.0) for number in range(4)]


def sampled(
    state: Path,
    clock: ManualClock,
    numbers: range,
    pod: Pod | None = None,
    *,
    environment: Mapping[str, str] = APART,
    keeper: Keeper | None = None,
) -> Sampling:
    """An agent that has sampled these."""
    gpus = FakeGpus(*(gpu_read(replace(GPUS[n], taken_at_ns=round(5e9 * n))) for n in numbers))
    host = Host(gpus, FakeProcesses(process_read(facts(1, CONTAINER))), (), pod=pod)
    chosen = config(state_dir=str(state))
    sampling = Sampling(chosen, host, clock, keeper or open_keeper(chosen, host, clock, environment))
    for _ in numbers:
        clock.advance(5)
        sampling.engine.sample()
    return sampling


def energy_j(collection: Collection | None, metric: str) -> float:
    assert collection is not None
    (family,) = (each for each in collection.blocks if each.metric.name == metric)
    assert family.metric.kind is Kind.COUNTER
    return sum(point.value for point in family.points)


def test_what_had_been_counted_is_told_as_it_was_when_it_was_taken_up(tmp_path: Path) -> None:
    clock = ManualClock()
    first = sampled(tmp_path / "s", clock, range(3))
    assert first.restored() is None
    first.stop()
    second = sampled(tmp_path / "s", clock, range(3, 4))
    assert energy_j(second.restored(), "gpu.workload.energy") == energy_j(second.restored(), "hw.energy") == 2000.0
    second.stop()


def test_an_agent_of_one_pod_tells_of_that_pod_only(tmp_path: Path) -> None:
    clock = ManualClock()
    pod = Pod(uid=CONTAINER.pod_uid)
    sampled(tmp_path / "s", clock, range(3), pod).stop()
    second = sampled(tmp_path / "s", clock, range(3, 4), pod)
    restored = second.restored()
    assert energy_j(restored, "gpu.workload.energy") == 2000.0
    assert restored is not None
    assert "hw.energy" not in {family.metric.name for family in restored.blocks}
    second.stop()
