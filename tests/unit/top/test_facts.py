from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.model import MethodEnergy
from otel_gpu.top.cycle import Use
from otel_gpu.top.facts import facts
from tests.builders import GIB
from tests.unit.top.cycles import use, workload


def test_memory_says_what_is_measured_what_inferred_and_how_sure() -> None:
    both = replace(workload("w", 2 * GIB), inferred_bytes=GIB, confidence=0.9)
    assert (
        "memory: 2.0 GiB measured, by the driver's process lists; "
        "1.0 GiB inferred, 90 % sure, by open devices, grants and growth"
    ) in facts(both)
    assert "memory: not known: the driver gives no figure" in facts(workload("w"))


def test_energy_says_by_which_methods_it_was_found() -> None:
    energy = MethodEnergy(measured_mj=5000, estimated_mj=0, inferred_mj=2000)
    assert "energy: 5 J measured (alone on the GPU); 2 J inferred (hidden, and the only one it can be)" in facts(
        workload("w", so_far=energy)
    )
    assert "energy: none yet" in facts(workload("w", so_far=MethodEnergy(measured_mj=0)))
    assert "energy: not known: nobody counts energy here" in facts(workload("w"))


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (use(), "idle: not known: nobody can tell who works here"),
        (use(idle_s=0.0), "idle: not found idle"),
        (use(idle_s=300.0, idle_for_s=30.0), "idle: held memory and did no work for 5 m; idle for 30 s now"),
        (
            use(idle_s=1800.0, idle_for_s=600.0, idle_places=3),
            "idle: held memory and did no work for 30 m of GPU time, summed over 3 places; idle for 10 m now",
        ),
        (use(idle_s=300.0), "idle: held memory and did no work for 5 m"),
    ],
)
def test_idleness_says_for_how_long_and_whether_now(does: Use, words: str) -> None:
    assert words in facts(replace(workload("w"), use=does))


def test_the_host_is_the_host_and_says_where_no_process_is_seen() -> None:
    host = replace(workload("host"), kind="host", id="host", pod=None, image=None)
    assert facts(host)[0] == "host"
    assert facts(host)[-1] == "no process of it is seen on a GPU"
    assert "no process" not in " ".join(facts(workload("w", processes=1)))
