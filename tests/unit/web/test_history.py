from __future__ import annotations

from dataclasses import replace

from otel_gpu.model import GpuReading, Report
from otel_gpu.web.history import SLOT_S, SLOTS, History
from tests.builders import GIB, WALL_NS, attribute, failed_gpu, gpu, memory, snapshot


def cycle(at_s: float, *gpus: GpuReading) -> Report:
    return attribute(None, snapshot(*gpus, at_s=at_s))


def busy(ratio: float | None = 0.5, power_w: float | None = 100.0, used_gib: float = 10) -> GpuReading:
    return gpu(0, gpu_ratio=ratio, power_w=power_w, memory=memory(used_gib=used_gib))


def test_a_slot_has_mean_low_and_high_of_its_cycles() -> None:
    history = History()
    history.observe(cycle(0, busy(0.2, 100, 10)))
    history.observe(cycle(5, busy(0.4, 200, 20)))
    history.observe(cycle(SLOT_S, busy(1.0, 300, 30)))
    assert history.document() == {
        "at": [WALL_NS / 1e9, WALL_NS / 1e9 + SLOT_S],
        "gpus": {
            "GPU-0": [
                ((0.3, 0.2, 0.4), (150.0, 100, 200), (15 * GIB, 10 * GIB, 20 * GIB)),
                ((1.0,) * 3, (300.0,) * 3, (30 * GIB,) * 3),
            ]
        },
    }
    assert history.document(newest_only=True)["gpus"] == {"GPU-0": [((1.0,) * 3, (300.0,) * 3, (30 * GIB,) * 3)]}


def test_an_unknown_figure_is_none_and_does_not_count() -> None:
    history = History()
    history.observe(cycle(0, busy(None, None)))
    history.observe(cycle(5, busy(0.4, None)))
    history.observe(cycle(SLOT_S, failed_gpu(0)))
    assert history.document()["gpus"]["GPU-0"] == [((0.4,) * 3, None, (10 * GIB,) * 3), (None, None, None)]


def test_a_new_gpu_has_no_earlier_slots() -> None:
    history = History()
    history.observe(cycle(0, gpu(0)))
    history.observe(cycle(SLOT_S, gpu(0), gpu(1, power_w=70)))
    assert history.document()["gpus"]["GPU-1"] == [None, (None, (70.0,) * 3, None)]


def test_at_most_an_hour_is_kept() -> None:
    history = History()
    for number in range(3 * SLOTS):
        history.observe(cycle(number * SLOT_S, gpu(number // SLOTS, power_w=float(number))))
    document = history.document()
    assert len(document["at"]) == SLOTS
    assert list(document["gpus"]) == ["GPU-2"]  # removed GPUs are forgotten after an hour


def test_rare_cycles_do_not_extend_the_hour() -> None:
    history = History()
    for hour in range(5):
        history.observe(cycle(3600.0 * hour, busy()))
    assert len(history.document()["at"]) == 1


def test_a_wall_clock_set_back_repeats_no_slot() -> None:
    history = History()
    first = cycle(0, busy())
    history.observe(first)
    history.observe(replace(cycle(5, busy()), wall_ns=first.wall_ns - 3600 * 10**9))
    assert history.document()["at"] == [first.wall_ns / 1e9]
