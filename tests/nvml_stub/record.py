"""Recording of a simulated host as a world file for the stub, and as a fake ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from otel_gpu.clock import ManualClock
from otel_gpu.model import GpuReading, ListedProcess, MigReading, ProcessFacts, ProcessKind, WorkloadKind, WorkloadRef
from otel_gpu.sources.sim.device import SimulatedDevice
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.world import GpuSpec, Roster, WorldSpec
from tests.nvml_stub.world import Listed, World, WorldGpu, WorldMig
from tests.proc_tree import ProcTree, maps_line, mig_minor

_FIGURES_US: Final = 1_000_000
_UVM_START: Final = 0x2_0000_0000


def record(spec: WorldSpec, seconds: float) -> World:
    """A recording of this world from world time 0 until ``seconds``.

    Energy, memory and process lists are exact at every update of the energy counter (100 ms) and at every start or end
    of a process; samples have their own times; power, temperature, clocks and device utilisation change once a second.
    """
    clock = ManualClock()
    host = SimulatedHost(replace(spec, age_s=0.0), clock)
    source = host.gpu_source()
    epoch_us = None if spec.wall_start_ns is None else spec.wall_start_ns // 1000
    world = World(driver_version=spec.driver_version, epoch_us=epoch_us)
    recorders = [_GpuRecorder(world, device) for device in host.devices]
    for at_us in _moments(spec, round(seconds * 1e6)):
        clock.advance((at_us * 1000 - clock.monotonic_ns()) / 1e9)
        for recorder, reading in zip(recorders, source.read().gpus, strict=True):
            recorder.write(at_us, reading)
    return world


def _moments(spec: WorldSpec, end_us: int) -> list[int]:
    """Updates of the energy counters, whole seconds, and starts and ends of processes."""
    moments = set(range(0, end_us + 1, _FIGURES_US))
    for step_us in {gpu.counter_step_us for gpu in spec.gpus}:
        moments.update(range(0, end_us + 1, step_us))
    roster = Roster(spec)
    change_us = roster.at(0).until_us
    while change_us <= end_us:
        moments.add(change_us)
        change_us = roster.at(change_us).until_us
    return sorted(moments)


class _GpuRecorder:
    """The records of one GPU. Unchanged values are not written again."""

    def __init__(self, world: World, device: SimulatedDevice) -> None:
        spec = device.spec
        identity = spec.identity
        self._device = device
        self._gpu = world.gpu(
            identity.uuid,
            name=identity.name,
            minor=identity.minor,
            pci_bus_id=None if identity.pci_bus_id is None else identity.pci_bus_id.rjust(16, "0"),
            serial=identity.serial,
        )
        if self._gpu.index != identity.index:
            raise ValueError("the stub numbers GPUs from 0 without gaps")
        self._gpu.typical()
        self._gpu.ring(spec.ring_size)
        self._gpu.power_limit_mw(0, round(spec.power_limit_w * 1000))
        if spec.energy_start_mj is None:
            self._gpu.unset(0, "energy_mj")
        self._instances = self._partition(spec)
        self._written: dict[str, object] = {}
        self._sampled_us = 0

    def _partition(self, spec: GpuSpec) -> tuple[WorldMig, ...]:
        if spec.mig is None:
            return ()
        self._gpu.mig_mode(0, enabled=True)
        self._gpu.sms(0, spec.sm_count)
        self._gpu.unset(0, "utilization")
        self._gpu.unset(0, "encoder")
        self._gpu.unset(0, "decoder")
        return tuple(
            self._gpu.mig(
                0,
                slot,
                uuid=mig.uuid,
                gpu_instance_id=mig.gpu_instance_id,
                compute_instance_id=mig.compute_instance_id,
                name=f"{spec.identity.name} MIG {mig.profile}",
                sm_count=mig.sm_count,
                gpu_slices=int(mig.profile.partition("g")[0]),
                compute_slices=int(mig.profile.partition("g")[0]),
                memory_mb=mig.memory_total_bytes >> 20,
            )
            for slot, mig in enumerate(spec.mig)
        )

    def write(self, at_us: int, reading: GpuReading) -> None:
        """Write the changes of the reading at this time."""
        if reading.energy_mj is not None:
            self._once("energy", reading.energy_mj, lambda: self._gpu.energy_mj(at_us, reading.energy_mj or 0))
        self._write_residents(at_us, self._gpu, reading)
        for instance, mig in zip(self._instances, reading.mig or (), strict=True):
            self._write_residents(at_us, instance, mig)
        self._write_samples()
        if at_us % _FIGURES_US == 0:
            self._write_figures(at_us, reading)

    def _write_residents(self, at_us: int, subject: WorldGpu | WorldMig, seen: GpuReading | MigReading) -> None:
        memory = seen.memory
        if memory is not None:
            self._once(
                f"{subject.ref} memory",
                memory,
                lambda: subject.memory(
                    at_us,
                    total_bytes=memory.total_bytes,
                    used_bytes=memory.used_bytes,
                    reserved_bytes=memory.reserved_bytes or 0,
                ),
            )
        lists = {
            ProcessKind.COMPUTE: subject.compute,
            ProcessKind.GRAPHICS: subject.graphics,
            ProcessKind.MPS: subject.mps,
        }
        for kind, write in lists.items():
            entries = _entries(seen.processes or (), kind)
            self._once(f"{subject.ref} {kind}", entries, partial(write, at_us, entries))

    def _write_samples(self) -> None:
        if self._device.spec.mig is not None:
            return
        for sample in self._device.ring:
            if sample.taken_us > self._sampled_us:
                self._sampled_us = sample.taken_us
                if not sample.credits:
                    self._gpu.sample(sample.taken_us, 0)
                for pid, (sm, memory, encoder, decoder) in sample.credits:
                    self._gpu.sample(sample.taken_us, pid, sm, memory=memory, encoder=encoder, decoder=decoder)

    def _write_figures(self, at_us: int, reading: GpuReading) -> None:
        self._gpu.power_mw(at_us, round((reading.power_w or 0.0) * 1000))
        self._gpu.temperature_c(at_us, round(reading.temperature_c or 0.0))
        sm_mhz, memory_mhz = reading.sm_clock_mhz or 0, reading.memory_clock_mhz or 0
        self._gpu.clocks(at_us, graphics_mhz=sm_mhz, sm_mhz=sm_mhz, memory_mhz=memory_mhz, video_mhz=sm_mhz)
        if reading.gpu_ratio is not None:
            self._gpu.utilization(at_us, _percent(reading.gpu_ratio), _percent(reading.memory_controller_ratio))
            self._gpu.encoder(at_us, _percent(reading.encoder_ratio))
            self._gpu.decoder(at_us, _percent(reading.decoder_ratio))

    def _once(self, what: str, value: object, write: Callable[[], None]) -> None:
        if self._written.get(what) != value:
            self._written[what] = value
            write()


def _percent(ratio: float | None) -> int:
    return round(100 * (ratio or 0.0))


def _entries(processes: Iterable[ListedProcess], kind: ProcessKind) -> tuple[Listed, ...]:
    return tuple(
        Listed(one.pid, one.memory_bytes, one.gpu_instance_id, one.compute_instance_id)
        for one in processes
        if one.kind is kind
    )


# ---------------------------------------------------------------------------- /proc


def write_proc_tree(spec: WorldSpec, root: Path, at_s: float) -> ProcTree:
    """A fake ``/proc`` at this world time. Processes of an earlier one that have ended are removed.

    Owners of processes are set as root only; otherwise the caller owns everything.
    """
    clock = ManualClock()
    host = SimulatedHost(replace(spec, age_s=0.0), clock)
    clock.advance(at_s)
    tree = ProcTree(root, btime_s=host.boot_time_s)
    tree.set_namespaces()
    for gpu in spec.gpus:
        if gpu.identity.minor is not None and gpu.identity.pci_bus_id is not None:
            tree.add_gpu(gpu.identity.pci_bus_id, gpu.identity.minor, gpu.identity.uuid)
    tree.set_mig_minors(1 + max(gpu.identity.minor or 0 for gpu in spec.gpus))
    alive = host.process_source().read([process.pid for process in spec.processes]).processes
    for path in root.iterdir():
        if path.name.isdecimal() and path.name != "1" and int(path.name) not in alive:
            tree.remove(int(path.name))
    for facts in alive.values():
        _write_process(tree, facts)
    return tree


def _write_process(tree: ProcTree, facts: ProcessFacts) -> None:
    nodes = [f"/dev/nvidia{minor}" for minor in sorted(facts.gpu_minors_open)]
    nodes += [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in sorted(map(mig_minor, facts.mig_access))]
    if nodes:
        nodes.insert(0, "/dev/nvidiactl")
    if facts.uvm_open:
        nodes.append("/dev/nvidia-uvm")
    mapped_bytes = facts.uvm_mapping_bytes
    directory = tree.add(
        facts.key.pid,
        comm=facts.name.encode(),
        start_ticks=facts.key.start_ticks,
        cgroup=f"0::{cgroup_path(facts.workload)}\n",
        fds=("/dev/null", *nodes),
        maps=maps_line(_UVM_START, mapped_bytes) if mapped_bytes else "",
    )
    if mapped_bytes is None:
        (directory / "maps").unlink()
    if os.geteuid() == 0 and facts.owner_uid is not None:
        os.chown(directory, facts.owner_uid, facts.owner_uid)


def cgroup_path(ref: WorkloadRef) -> str:
    """The cgroup that systemd, the kubelet or Slurm gives a process of this workload."""
    if ref.pod_uid is not None:
        pod = f"kubepods-burstable-pod{ref.pod_uid.replace('-', '_')}"
        return f"/kubepods.slice/kubepods-burstable.slice/{pod}.slice/cri-containerd-{ref.id}.scope"
    match ref.kind:
        case WorkloadKind.CONTAINER:
            return f"/system.slice/docker-{ref.id}.scope"
        case WorkloadKind.SLURM_JOB:
            return f"/system.slice/slurmstepd.scope/job_{ref.id}/step_{ref.slurm_step or 0}/user/task_0"
        case WorkloadKind.SYSTEMD_UNIT:
            return f"/system.slice/{ref.id}"
        case WorkloadKind.LXC:
            return f"/lxc.payload.{ref.id}"
        case WorkloadKind.HOST:
            return "/user.slice/user-1000.slice/session-3.scope"
