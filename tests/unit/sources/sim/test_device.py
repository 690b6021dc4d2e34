"""One simulated GPU: shares, power, energy, samples, memory and time."""

from __future__ import annotations

from typing import Any

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.sources.sim import SimulatedHost
from otel_gpu.sources.sim.device import MAX_STEPS, MAX_STRIDES, SimulatedDevice
from otel_gpu.sources.sim.signals import Bursty, Points, Steady, Wander
from otel_gpu.sources.sim.truth import PJ_PER_MJ, GpuTruth
from otel_gpu.sources.sim.world import GpuSpec, GrantSpec, JobStream, Roster, Visibility, WorldSpec
from tests.unit.sources.sim.builders import GIB, gpu, mig_gpu, process, use, world

SECOND_US = 1_000_000


def device(spec: WorldSpec) -> SimulatedDevice:
    return SimulatedDevice(spec, spec.gpus[0])


def advanced(spec: WorldSpec, seconds: float) -> SimulatedDevice:
    made = device(spec)
    made.advance(round(seconds * SECOND_US))
    return made


def watts(truth: GpuTruth, seconds: float) -> dict[int, float]:
    return {one.key.pid: one.dynamic_mj / 1e3 / seconds for one in truth.processes}


# ---------------------------------------------------------------------------- shares and power


def test_an_empty_gpu_draws_its_static_power_only() -> None:
    truth = advanced(world(), 100.0).truth()
    assert (truth.static_pj, truth.context_pj, truth.dynamic_pj) == (4_000_000 * PJ_PER_MJ, 0, 0)
    assert (truth.occupied_s, truth.busy_s, truth.processes) == (0.0, 0.0, ())


def test_a_context_without_work_adds_the_context_power() -> None:
    truth = advanced(world(process(1, use(0.0))), 100.0).truth()
    assert (truth.context_pj, truth.dynamic_pj) == (2_000_000 * PJ_PER_MJ, 0)
    assert truth.occupied_s == 100.0


def test_an_open_device_file_is_not_a_context() -> None:
    truth = advanced(world(process(1, use(0.5, context=False))), 100.0).truth()
    assert (truth.context_pj, truth.dynamic_pj, truth.used_bytes, truth.processes) == (0, 0, 0, ())


def test_the_power_of_a_process_is_its_watts_times_its_share() -> None:
    truth = advanced(world(process(1, use(0.2, watts=100.0)), process(2, use(0.3, watts=300.0))), 60.0).truth()
    assert watts(truth, 60.0) == pytest.approx({1: 20.0, 2: 90.0})
    assert [one.busy_s for one in truth.processes] == pytest.approx([12.0, 18.0])
    assert truth.busy_s == pytest.approx(30.0)


def test_overcommitted_work_is_scaled_down_in_proportion() -> None:
    truth = advanced(world(process(1, use(0.9, watts=100.0)), process(2, use(0.6, watts=100.0))), 60.0).truth()
    assert watts(truth, 60.0) == pytest.approx({1: 60.0, 2: 40.0})
    assert truth.busy_s == pytest.approx(60.0)


def test_the_power_limit_scales_the_dynamic_part_only() -> None:
    spec = world(process(1, use(0.5, watts=400.0)), process(2, use(0.5, watts=200.0)), gpus=(gpu(power_limit_w=210.0),))
    limited = advanced(spec, 60.0)
    truth = limited.truth()
    assert limited.power_w == pytest.approx(210.0, abs=0.01)
    assert watts(truth, 60.0) == pytest.approx({1: 100.0, 2: 50.0}, rel=1e-6)
    assert truth.static_pj + truth.context_pj == 60 * 60_000 * PJ_PER_MJ
    assert limited.sm_clock_mhz == limited.spec.max_sm_clock_mhz // 2


def test_sublinear_power_costs_more_at_low_utilisation() -> None:
    def dynamic_w(share: float) -> float:
        spec = world(process(1, use(share, watts=100.0)), gpus=(gpu(power_exponent=0.5),))
        return watts(advanced(spec, 10.0).truth(), 10.0)[1]

    assert [dynamic_w(0.25), dynamic_w(1.0)] == pytest.approx([50.0, 100.0])


def test_noise_changes_power_and_not_its_mean() -> None:
    spec = world(process(1, use(1.0, watts=100.0)), gpus=(gpu(noise_ratio=0.1),))
    noisy = device(spec)
    powers = []
    for second in range(1, 301):
        noisy.advance(second * SECOND_US)
        powers.append(noisy.power_w)
    assert len(set(powers)) > 250
    assert watts(noisy.truth(), 300.0)[1] == pytest.approx(100.0, rel=0.01)


def test_watts_can_drift() -> None:
    drifting = process(1, use(1.0, watts=Points(((0.0, 100.0), (100.0, 300.0)))))
    assert watts(advanced(world(drifting), 100.0).truth(), 100.0)[1] == pytest.approx(200.0, rel=0.01)


def test_temperature_follows_power_with_a_lag() -> None:
    warming = device(world(process(1, use(1.0, watts=300.0), start_s=10.0)))
    warming.advance(9 * SECOND_US)
    cold = warming.temperature_c
    warming.advance(15 * SECOND_US)
    lukewarm = warming.temperature_c
    warming.advance(200 * SECOND_US)
    assert cold < lukewarm < warming.temperature_c
    assert warming.temperature_c == pytest.approx(27.0 + 0.11 * 360.0, abs=1.0)


# ---------------------------------------------------------------------------- energy adds up


def busy_world(**changes: Any) -> WorldSpec:
    return world(
        process(1, use(Bursty(0.9, 0.4, 3.0, seed=1), watts=250.0)),
        process(2, use(Wander(0.0, 0.8, 5.0, seed=2), watts=Wander(80.0, 300.0, 60.0, seed=3, smooth=True))),
        process(3, use(0.3, watts=111.1), start_s=20.3, end_s=50.7),
        gpus=(gpu(noise_ratio=0.05, power_exponent=0.8, power_limit_w=260.0, **changes),),
    )


def test_the_counter_is_the_true_total_at_its_last_update() -> None:
    spec = busy_world()
    reading, exact = device(spec), device(spec)
    for now_us in range(37_003, 20 * SECOND_US, 37_003):
        reading.advance(now_us)
        exact.advance(now_us - now_us % 100_000)
        assert reading.counter_mj == exact.truth().total_pj // PJ_PER_MJ


def test_the_counter_changes_every_100_ms_and_never_falls() -> None:
    moving = device(busy_world())
    previous, changes_us = moving.counter_mj, []
    for now_us in range(0, 10 * SECOND_US, 10_000):
        moving.advance(now_us)
        assert moving.counter_mj >= previous
        if moving.counter_mj != previous:
            changes_us.append(now_us)
        previous = moving.counter_mj
    assert changes_us == list(range(100_000, 10 * SECOND_US, 100_000))


def test_the_policy_times_of_processes_sum_to_the_occupied_time() -> None:
    truth = advanced(busy_world(), 80.0).truth()
    for total in (
        sum(one.equal_share_s for one in truth.processes),
        sum(one.memory_share_s for one in truth.processes),
    ):
        assert total == pytest.approx(truth.occupied_s)
    assert sum(one.work_share_s for one in truth.processes) < truth.occupied_s
    assert sum(one.resident_s for one in truth.processes) == pytest.approx(80.0 * 2 + 30.4, abs=0.28)


def test_equal_shares_are_per_workload_and_memory_shares_per_process() -> None:
    workers = [process(pid, use(memory=GIB), workload="workers") for pid in (1, 2)]
    alone = process(3, use(memory=2 * GIB))
    truth = advanced(world(*workers, alone), 40.0).truth()
    assert [one.equal_share_s for one in truth.processes] == pytest.approx([10.0, 10.0, 20.0])
    assert [one.memory_share_s for one in truth.processes] == pytest.approx([10.0, 10.0, 20.0])


# ---------------------------------------------------------------------------- history


def test_another_seed_gives_another_history() -> None:
    specs = [world(process(1, use(0.4)), process(2, use(0.4)), seed=seed) for seed in (1, 2)]
    first, second = ([sample.credits for sample in advanced(spec, 10.0).ring] for spec in specs)
    assert first != second


def test_ten_minutes_take_one_step_per_sample_period() -> None:
    moving = advanced(busy_world(), 600.0)
    assert moving.steps == 600_000_000 // 139_000


def test_a_gap_of_a_month_is_crossed_in_strides_and_adds_up() -> None:
    seconds = 30 * 86_400
    moving = advanced(busy_world(), 10.0)
    before = moving.steps
    moving.advance(seconds * SECOND_US)
    assert moving.steps - before <= MAX_STRIDES + moving.spec.ring_size + 1
    truth = moving.truth()
    assert truth.static_pj == 40_000 * seconds * PJ_PER_MJ
    assert truth.dynamic_pj == sum(one.dynamic_pj for one in truth.processes)
    assert moving.counter_mj == truth.total_pj // PJ_PER_MJ
    per_second = advanced(busy_world(), 1_000.0).truth()
    assert truth.dynamic_pj / seconds == pytest.approx(per_second.dynamic_pj / 1_000.0, rel=0.15)
    assert len(list(moving.ring)) == moving.spec.ring_size


def test_a_short_gap_is_crossed_without_strides() -> None:
    spec = busy_world()
    jumped, walked = device(spec), device(spec)
    end_us = MAX_STEPS * 139_000
    jumped.advance(end_us)
    for now_us in range(0, end_us + 1, end_us // 10):
        walked.advance(now_us)
    assert jumped.truth() == walked.truth()


# ---------------------------------------------------------------------------- samples


def test_a_sample_credits_the_whole_engine_to_one_pid() -> None:
    samples = list(advanced(world(process(1, use(0.3)), process(2, use(0.2))), 9.0).ring)
    assert {sample.whole.sm_percent for sample in samples} == {50}
    assert all(len(sample.credits) == 1 and sample.credits[0][1].sm_percent == 50 for sample in samples)
    assert [sample.taken_us for sample in samples] == [139_000 * (k + 1) for k in range(len(samples))]


def test_pids_are_credited_in_proportion_to_their_shares() -> None:
    moving = device(world(process(1, use(0.45)), process(2, use(0.15)), process(3, use(0.05)), process(4, use(0.0))))
    wins = dict.fromkeys((1, 2, 3, 4), 0)
    count = 9_000
    for number in range(1, count + 1):
        moving.advance(number * 139_000)
        newest = list(moving.ring)[-1]
        wins[newest.credits[0][0]] += 1
    for pid, share in ((1, 0.45), (2, 0.15), (3, 0.05)):
        probability = share / 0.65
        sigma = (probability * (1 - probability) / count) ** 0.5
        assert wins[pid] / count == pytest.approx(probability, abs=4 * sigma)
    assert wins[4] == 0


def test_samples_without_work_credit_no_pid() -> None:
    samples = list(advanced(world(process(1, use(0.0))), 5.0).ring)
    assert len(samples) == 35
    assert all(sample.credits == () and sample.whole == (0, 0, 0, 0) for sample in samples)


def test_a_process_without_samples_still_counts_as_utilisation() -> None:
    samples = list(advanced(world(process(1, use(0.5, sampled=False))), 5.0).ring)
    assert all(sample.credits == () and sample.whole.sm_percent == 50 for sample in samples)


def test_video_engines_are_credited_to_their_users() -> None:
    video = process(1, use(0.05, encoder_ratio=4.0, decoder_ratio=8.0))
    samples = list(advanced(world(video, process(2, use(0.9))), 9.0).ring)
    video_credits = [engines for sample in samples for pid, engines in sample.credits if engines.encoder_percent]
    assert len(video_credits) == len(samples)
    assert {pid for sample in samples for pid, engines in sample.credits if engines.decoder_percent} == {1}
    assert {sample.whole.decoder_percent for sample in samples} == {40}


def test_sample_period_and_ring_size_are_configurable() -> None:
    other = advanced(world(process(1, use(0.5)), gpus=(gpu(sample_period_us=167_000, ring_size=100),)), 60.0)
    times_us = [sample.taken_us for sample in other.ring]
    assert len(times_us) == 100
    assert times_us[-1] - times_us[-2] == 167_000


# ---------------------------------------------------------------------------- memory, MIG, idle time, dropped jobs


def test_memory_follows_its_signal_and_older_processes_have_priority() -> None:
    ramp = Points(((0.0, 0.0), (10.0, 10.0 * GIB)))
    moving = device(world(process(1, use(memory=ramp)), process(2, use(memory=9 * GIB), start_s=1.0)))
    held = []
    for second in (0, 5, 8, 20):
        moving.advance(second * SECOND_US)
        held.append([holding.memory_bytes // GIB for holding in moving.holdings()])
    assert held == [[0], [5, 9], [8, 7], [10, 5]]
    assert moving.truth().used_bytes == 15 * GIB


def test_the_truth_has_hidden_memory_and_the_start_of_idle_time() -> None:
    pausing = use(Points(((0.0, 0.5), (30.0, 0.5), (30.0, 0.0))), memory=2 * GIB)
    spec = world(
        process(1, pausing), process(2, use(memory=3 * GIB, visibility=Visibility.HIDDEN), start_s=-4.0, end_s=50.0)
    )
    moving = advanced(spec, 20.0)
    assert [one.idle_since_s for one in moving.truth().processes] == [None, 0.0]
    moving.advance(40 * SECOND_US)
    truth = moving.truth()
    assert truth.hidden_bytes == 3 * GIB
    assert truth.processes[0].idle_since_s == pytest.approx(30.0, abs=0.139)
    moving.advance(60 * SECOND_US)
    ended = moving.truth().processes[1]
    assert (ended.ended, ended.resident_bytes, ended.idle_since_s) == (True, 0, None)


def test_mig_instances_do_not_share_their_sms() -> None:
    spec = world(
        process(1, use(0.9, gpu_instance_id=1)),
        process(2, use(0.9, gpu_instance_id=1)),
        process(3, use(0.5, gpu_instance_id=2, memory=9 * GIB)),
        gpus=(mig_gpu(),),
    )
    truth = advanced(spec, 10.0).truth()
    assert [one.busy_s for one in truth.processes] == pytest.approx([3.0, 3.0, 1.0])
    assert [one.mig_uuid for one in truth.processes] == ["MIG-1", "MIG-1", "MIG-2"]
    assert truth.processes[2].resident_bytes == 4 * GIB


@pytest.mark.long
def test_jobs_of_a_stream_are_dropped_and_their_energy_stays() -> None:
    template = process(0, use(0.5, watts=100.0))
    stream = JobStream("jobs", 5.0, 3.0, 12.0, (template,), first_pid=100)
    moving = device(WorldSpec(seed=1, gpus=(gpu(),), processes=(process(1, use(0.1), end_s=9.0),), streams=(stream,)))
    known = []
    for minute in range(1, 61):
        moving.advance(minute * 60 * SECOND_US)
        truth = moving.truth()
        known.append(len(truth.processes))
        assert truth.dynamic_pj == truth.retired_pj + sum(one.dynamic_pj for one in truth.processes)
    assert max(known) <= 600 / 5 + 10
    assert truth.retired_pj > 0
    assert truth.processes[0].key.pid == 1, "what the world names is kept"


def test_a_job_is_dropped_ten_minutes_after_its_end() -> None:
    stream = JobStream("jobs", 2_000.0, 10.0, 10.0, (process(0, use(0.5)),), first_pid=100)
    spec = WorldSpec(seed=1, gpus=(gpu(),), streams=(stream,))
    moving, roster = device(spec), Roster(spec)
    (one,) = roster.at(roster.at(0).until_us).processes
    assert one.end_us is not None
    moving.advance(one.end_us + 600 * SECOND_US)
    assert [known.key.pid for known in moving.truth().processes] == [one.pid]
    moving.advance(one.end_us + 600 * SECOND_US + 1)
    truth = moving.truth()
    assert truth.processes == ()
    assert truth.retired_pj == truth.dynamic_pj > 0


# ---------------------------------------------------------------------------- invalid specifications


@pytest.mark.parametrize(
    "changes",
    [
        {"ring_size": 0}, {"memory_reserved_bytes": 17 * GIB}, {"static_w": -1.0}, {"memory_total_bytes": 0},
        {"stray_bytes": 17 * GIB}, {"stray_bytes": -1}, {"mig": mig_gpu().mig, "stray_bytes": 1},
    ],
)  # fmt: skip
def test_an_invalid_gpu_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="GPU 0"):
        gpu(**changes)


def test_an_invalid_world_is_refused() -> None:
    def refuse(match: str, *processes: object, gpus: tuple[GpuSpec, ...] = (gpu(),)) -> None:
        with pytest.raises(ValueError, match=match):
            WorldSpec(seed=1, gpus=gpus, processes=processes)  # type: ignore[arg-type]

    refuse("share an index", gpus=(gpu(), gpu()))
    refuse("no GPU 1", process(5, use(gpu=1)))
    refuse("used twice", process(5, use(), use()))
    refuse("no instance 7", process(5, use(gpu_instance_id=7)), gpus=(mig_gpu(),))
    refuse("no instance None", process(5, use()), gpus=(mig_gpu(),))
    refuse("the same process twice", process(5, use()), process(5, use()))
    refuse("end after its start", process(5, use(), start_s=3.0, end_s=3.0))
    with pytest.raises(ValueError, match="a grant of a GPU that does not exist"):
        WorldSpec(seed=1, gpus=(gpu(),), grants=(GrantSpec(process(5).workload, gpu=1, replicas=1),))


def test_stray_memory_is_used_and_not_available_to_processes() -> None:
    stray = gpu(stray_bytes=3 * GIB)
    host = SimulatedHost(world(process(5, use(memory=Steady(99.0 * GIB))), gpus=(stray,)), ManualClock())
    [reading] = host.gpu_source().read().gpus
    assert reading.memory is not None
    assert reading.processes is not None
    assert reading.memory.free_bytes == 0
    assert reading.memory.used_bytes == 3 * GIB + (reading.processes[0].memory_bytes or 0)
