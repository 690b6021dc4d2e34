from __future__ import annotations

from dataclasses import replace

from otel_gpu.model import GpuReading, Report
from otel_gpu.view.history import SLOT_S, SLOTS, Recorder, merged, newest
from otel_gpu.view.model import History
from tests.builders import GIB, WALL_NS, attribute, failed_gpu, gpu, memory, snapshot


def cycle(at_s: float, *gpus: GpuReading) -> Report:
    return attribute(None, snapshot(*gpus, at_s=at_s))


def busy(ratio: float | None = 0.5, power_w: float | None = 100.0, used_gib: float = 10) -> GpuReading:
    return gpu(0, gpu_ratio=ratio, power_w=power_w, memory=memory(used_gib=used_gib))


def test_a_slot_has_mean_low_and_high_of_its_cycles() -> None:
    recorder = Recorder()
    recorder.observe(cycle(0, busy(0.2, 100, 10)))
    recorder.observe(cycle(5, busy(0.4, 200, 20)))
    recorder.observe(cycle(SLOT_S, busy(1.0, 300, 30)))
    assert recorder.history() == History(
        (WALL_NS / 1e9, WALL_NS / 1e9 + SLOT_S),
        {
            "GPU-0": (
                ((0.3, 0.2, 0.4), (150.0, 100, 200), (15 * GIB, 10 * GIB, 20 * GIB)),
                ((1.0,) * 3, (300.0,) * 3, (30 * GIB,) * 3),
            )
        },
    )
    assert newest(recorder.history()).gpus == {"GPU-0": (((1.0,) * 3, (300.0,) * 3, (30 * GIB,) * 3),)}


def test_an_unknown_figure_is_none_and_does_not_count() -> None:
    recorder = Recorder()
    recorder.observe(cycle(0, busy(None, None)))
    recorder.observe(cycle(5, busy(0.4, None)))
    recorder.observe(cycle(SLOT_S, failed_gpu(0)))
    assert recorder.history().gpus["GPU-0"] == (((0.4,) * 3, None, (10 * GIB,) * 3), (None, None, None))


def test_a_new_gpu_has_no_earlier_slots() -> None:
    recorder = Recorder()
    recorder.observe(cycle(0, gpu(0)))
    recorder.observe(cycle(SLOT_S, gpu(0), gpu(1, power_w=70)))
    assert recorder.history().gpus["GPU-1"] == (None, (None, (70.0,) * 3, None))


def test_at_most_an_hour_is_kept() -> None:
    recorder = Recorder()
    for number in range(3 * SLOTS):
        recorder.observe(cycle(number * SLOT_S, gpu(number // SLOTS, power_w=float(number))))
    history = recorder.history()
    assert len(history.at) == SLOTS
    assert list(history.gpus) == ["GPU-2"]  # removed GPUs are forgotten after an hour


def test_rare_cycles_do_not_extend_the_hour() -> None:
    recorder = Recorder()
    for hour in range(5):
        recorder.observe(cycle(3600.0 * hour, busy()))
    assert len(recorder.history().at) == 1


def test_a_wall_clock_set_back_repeats_no_slot() -> None:
    recorder = Recorder()
    first = cycle(0, busy())
    recorder.observe(first)
    recorder.observe(replace(cycle(5, busy()), wall_ns=first.wall_ns - 3600 * 10**9))
    assert recorder.history().at == (first.wall_ns / 1e9,)


def slots(*ratios: tuple[float, float | None]) -> History:
    """The history of a GPU: times and utilisation."""
    summaries = tuple(None if ratio is None else ((ratio, 0.0, 1.0), None, None) for _, ratio in ratios)
    return History(tuple(at for at, _ in ratios), {"GPU-0": summaries})


def ratios_of(history: History) -> list[float | None]:
    return [None if slot is None or slot[0] is None else slot[0][0] for slot in history.gpus["GPU-0"]]


def test_an_update_adds_slots_and_replaces_the_newest() -> None:
    history = merged(History((), {}), slots((0.0, 0.1), (15.0, None), (30.0, 0.3)))
    history = merged(history, slots((30.0, 0.4)))  # the slot of now, with a further cycle
    history = merged(history, slots((45.0, 0.5)))
    assert history.at == (0.0, 15.0, 30.0, 45.0)
    assert ratios_of(history) == [0.1, None, 0.4, 0.5]


def test_a_merged_history_is_an_hour_at_most() -> None:
    history = History((), {})
    for number in range(SLOTS + 10):
        history = merged(history, slots((number * SLOT_S, number / 1000)))
    assert ratios_of(history) == [number / 1000 for number in range(10, SLOTS + 10)]
    assert merged(history, History((1e9,) * 1, {})).gpus.keys() == {"GPU-0"}
