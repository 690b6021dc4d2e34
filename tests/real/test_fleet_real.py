"""Ten agents send through two tiers of real Collectors with the shipped configurations while a gateway is killed."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from bench.fleet.extrapolation import measured
from bench.fleet.report import as_document, as_text
from bench.fleet.run import Options, run
from bench.fleet.world import GPUS
from tests.cli import clean_environment
from tests.real.collector import ROOT, binary

pytestmark = pytest.mark.real

AGENTS = 10


def test_no_point_is_lost_when_a_gateway_is_killed_and_restarted() -> None:
    binary()
    progress = io.StringIO()
    result = run(Options(agents=AGENTS, nodes=2, seconds=18, interval_s=1, export_interval_s=2), progress)
    balance, outage, totals = result.balance, result.outage, result.drained.totals

    # During the outage the gateway's ports refused, agents continued to send, and nodes queued the points.
    assert outage.refused
    assert outage.away_s >= 6
    assert outage.sent_points > 0
    assert outage.node_queue_bytes > measured(result).plain_bytes_per_point * measured(result).series_per_host

    assert len(result.last.sent) == AGENTS
    assert all(len(one.points) > 3 for one in result.last.sent)
    assert balance.lost_points == 0
    assert balance.unknown_points == 0
    assert balance.received_points == balance.sent_points == totals.distinct_points
    # The sum of each counter at the end is exactly equal.
    assert balance.hosts_with_other_counters == ()
    for one in result.last.sent:
        assert one.counters["hw.energy"] == pytest.approx(one.counters["gpu.device.energy"], rel=1e-9), (
            "the agent's own sums differ"
        )
        assert one.counters["gpu.workload.energy"] > 0
    assert balance.holds

    assert "gateway-1 is killed" in progress.getvalue()
    text = "\n".join(as_text(result))
    assert "lost                        0 points" in text
    assert as_document(result)["balance"] == {
        "sent_points": balance.sent_points,
        "received_points": balance.sent_points,
        "lost_points": 0,
        "unknown_points": 0,
        "untaken_points": balance.untaken_points,
        "hosts_with_other_counters": (),
    }
    assert measured(result).series_per_host > 20 * GPUS


def descendants(pid: int) -> Sequence[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_fleet_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    binary()
    process = subprocess.Popen(
        # A shell ignores interrupts in background jobs, and child processes inherit that.
        [
            *("env", "--default-signal=INT", sys.executable, "-m", "bench.fleet"),
            *("--agents", "2", "--nodes", "1", "--processes", "1"),
        ],
        cwd=ROOT,
        env=clean_environment({"TMPDIR": str(tmp_path)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "starting agents" in line:
                break
        started = descendants(process.pid)
        # Two gateways, a node, the backend, the agents, and Python's resource tracker.
        assert len([one for one in started if one.name().startswith("otelcol")]) == 3
        assert len(started) >= 5
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "fleet: interrupted; everything has ended"
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(started, timeout=5)
    assert alive == []
    assert list(tmp_path.iterdir()) == []
