"""State directories that the version before this one wrote.

Those in ``previous`` are of an agent with journals of format 2, on the host of ``lives``: after a clean stop (8 kJ
counted), killed in the cycle of a checkpoint (7 kJ), and killed two cycles later (9 kJ).
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from tests.state_dirs import StatefulAgent, counters
from tests.unit.attribution.played import CYCLE_MJ
from tests.unit.state.lives import files, is_fresh, run, world

PREVIOUS = Path(__file__).parent / "previous"


def directory_of(kind: str, tmp_path: Path) -> Path:
    """A copy that an agent may use."""
    path = Path(shutil.copytree(PREVIOUS / kind, tmp_path / "state"))
    path.chmod(0o700)
    return path


@pytest.mark.parametrize(("kind", "cycles"), [("stopped", 8), ("killed_after_checkpoint", 7)])
@pytest.mark.parametrize("agent", ["1.2.3", "2.0"], ids=["same version", "next version"])
def test_a_checkpoint_is_resumed_with_every_counter(tmp_path: Path, kind: str, cycles: int, agent: str) -> None:
    resumed = StatefulAgent(directory_of(kind, tmp_path), agent=agent)
    report = run(resumed, 50)
    assert report.epoch_ns == world(0).wall_ns
    assert resumed.restored is not None
    before, after = counters(resumed.restored), counters(report)
    assert sum(before["gpu", "GPU-0", report.epoch_ns]) == cycles * CYCLE_MJ
    assert sum(after["gpu", "GPU-0", report.epoch_ns]) == 10 * CYCLE_MJ, "with the time without an agent"
    assert before.keys() == after.keys()
    assert {key[0] for key in before} == {"gpu", "workload", "process"}


@pytest.mark.parametrize("agent", ["1.2.3", "2.0"], ids=["same version", "next version"])
def test_a_journal_of_format_2_with_newer_cycles_is_set_aside_with_one_warning(
    tmp_path: Path, agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = directory_of("killed", tmp_path)
    with caplog.at_level(logging.INFO):
        report = run(StatefulAgent(path, agent=agent), 50)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"{path}/journal-000002 is not trusted and is now {path}/journal.rejected, counters start at 0: "
        "its format is 2, and this version reads format 1"
    )
    assert is_fresh(report), "counters have a new start, so that none falls"
    assert files(path) == ["journal-000003", "journal.rejected"]


@pytest.mark.parametrize("name", ["attribution_short", "attribution_long"])
def test_everything_that_attribution_remembers_is_restored_as_it_was_saved(name: str) -> None:
    """Between them they have overflow, retired and dropped accounts, former names, hidden memory and learned power."""
    saved = json.loads((PREVIOUS / f"{name}.json").read_text(encoding="utf-8"))
    restored = Attributor.from_state(AttributionOptions(), saved, now_ns=saved["at_ns"], same_boot=True)
    for gpu in saved["gpus"].values():  # counts that no code ever read
        del gpu["baseline"]["dropped"], gpu["learned"]["dropped"]
    assert json.loads(json.dumps(restored.to_state())) == saved
