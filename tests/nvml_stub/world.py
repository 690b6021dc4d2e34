"""Writer of world files for the stub; WORLD.md describes the format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.nvml_stub.play import STEPPED_EPOCH_US, StubClock, preload, stub_env, stub_variables

__all__ = (
    "STEPPED_EPOCH_US", "Listed", "Row", "StubClock", "World", "WorldGpu", "WorldMig", "preload", "stub_env",
    "stub_variables",
)  # fmt: skip

SubjectKey = Literal["memory", "compute", "graphics", "mps"]
GpuKey = Literal[
    SubjectKey, "energy_mj", "power_mw", "power_limit_mw", "temperature", "memory_temperature", "utilization",
    "encoder", "decoder", "clocks", "bar1", "ecc", "ecc_mode", "persistence", "pstate", "compute_mode", "mig_mode",
    "sms", "accounting_mode", "rows",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of a process list; ``memory_bytes`` ``None`` is the driver's "not available"."""

    pid: int
    memory_bytes: int | None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    protected_bytes: int = 0

    def __str__(self) -> str:
        fields = (self.memory_bytes, self.gpu_instance_id, self.compute_instance_id, self.protected_bytes)
        return ":".join([str(self.pid), *("-" if field is None else str(field) for field in fields)])


@dataclass(frozen=True, slots=True)
class Row:
    """A verbatim row of the utilisation call; ``at_us`` is world time, the other values are percent."""

    pid: int
    at_us: int
    sm: int
    memory: int = 0
    encoder: int = 0
    decoder: int = 0

    def __str__(self) -> str:
        return f"{self.pid}:{self.at_us}:{self.sm}:{self.memory}:{self.encoder}:{self.decoder}"


class _Subject:
    """Records that GPUs and MIG instances share. Times are world time in µs."""

    def __init__(self, lines: list[str], ref: str) -> None:
        self._lines = lines
        self.ref = ref

    def _record(self, key: str, at_us: int, *values: object) -> None:
        self._lines.append(" ".join([key, str(at_us), self.ref, *map(str, values)]))

    def memory(self, at_us: int, *, total_bytes: int, used_bytes: int, reserved_bytes: int = 0) -> None:
        """Device memory; ``used_bytes`` excludes ``reserved_bytes``, free is the rest."""
        self._record("memory", at_us, total_bytes, reserved_bytes, used_bytes)

    def compute(self, at_us: int, entries: Iterable[Listed] = ()) -> None:
        """The whole compute list from now on."""
        self._record("compute", at_us, *entries)

    def graphics(self, at_us: int, entries: Iterable[Listed] = ()) -> None:
        """The whole graphics list from now on."""
        self._record("graphics", at_us, *entries)

    def mps(self, at_us: int, entries: Iterable[Listed] = ()) -> None:
        """The whole MPS list from now on."""
        self._record("mps", at_us, *entries)

    def no_processes(self, at_us: int) -> None:
        """All three lists, empty."""
        self.compute(at_us)
        self.graphics(at_us)
        self.mps(at_us)


class WorldMig(_Subject):
    """A MIG instance in a slot of a GPU."""

    def unset(self, at_us: int, key: SubjectKey) -> None:
        """From now on NOT_SUPPORTED."""
        self._record(key, at_us, "-")


class WorldGpu(_Subject):
    """A physical GPU."""

    def __init__(self, lines: list[str], index: int) -> None:
        super().__init__(lines, str(index))
        self.index = index

    def _is(self, key: str, *values: object) -> None:
        self._lines.append(" ".join([key, self.ref, *map(str, values)]))

    # ---- behaviour of the driver

    def ring(self, samples: int) -> None:
        """The number of utilisation samples the driver keeps (default 72)."""
        self._is("ring", samples)

    def row_mode(self, mode: Literal["mean", "per-sample"]) -> None:
        """Whether a row is a process's mean over the window, or one sample."""
        self._is("row_mode", mode)

    def sizing(self, reply: int | Literal["exact", "success"]) -> None:
        """The reply to a utilisation call without a buffer: the count, a fixed number, or SUCCESS if the count is 0."""
        self._is("sizing", reply)

    def mig_slots(self, count: int) -> None:
        """The largest number of MIG devices (default: one more than the highest slot used)."""
        self._is("mig_slots", count)

    def accounting_buffer(self, count: int) -> None:
        """The number of accounting records the driver keeps (default 4000)."""
        self._is("accounting_buffer", count)

    def max_clocks(self, *, graphics_mhz: int, sm_mhz: int, memory_mhz: int, video_mhz: int) -> None:
        """The highest clocks."""
        self._is("max_clocks", graphics_mhz, sm_mhz, memory_mhz, video_mhz)

    def event_types(self, mask: int) -> None:
        """The event types the device supports."""
        self._is("event_types", mask)

    # ---- figures

    def unset(self, at_us: int, key: GpuKey) -> None:
        """From now on NOT_SUPPORTED (``rows``: the ring is used again)."""
        self._record(key, at_us, "-")

    def energy_mj(self, at_us: int, millijoules: int) -> None:
        """The energy counter steps to this."""
        self._record("energy_mj", at_us, millijoules)

    def energy_steps(
        self, from_us: int, until_us: int, power_w: float, *, start_mj: int = 0, step_us: int = 100_000
    ) -> int:
        """Updates of the counter under constant power, the last at or before ``until_us``; returns its value in mJ."""
        millijoules = start_mj
        for at_us in range(from_us, until_us + 1, step_us):
            millijoules = start_mj + round(power_w * (at_us - from_us) / 1000)
            self.energy_mj(at_us, millijoules)
        return millijoules

    def power_mw(self, at_us: int, average_mw: int, instant_mw: int | None = None) -> None:
        """Power; the current value is the average by default."""
        self._record("power_mw", at_us, average_mw, *([] if instant_mw is None else [instant_mw]))

    def power_limit_mw(self, at_us: int, management_mw: int, enforced_mw: int | None = None) -> None:
        """Power limits; the enforced limit is the management limit by default."""
        self._record("power_limit_mw", at_us, management_mw, *([] if enforced_mw is None else [enforced_mw]))

    def temperature_c(self, at_us: int, celsius: int) -> None:
        """The GPU's temperature."""
        self._record("temperature", at_us, celsius)

    def memory_temperature_c(self, at_us: int, celsius: int) -> None:
        """The memory's temperature (a field value)."""
        self._record("memory_temperature", at_us, celsius)

    def utilization(self, at_us: int, gpu_percent: int, memory_percent: int) -> None:
        """The device's utilisation rates."""
        self._record("utilization", at_us, gpu_percent, memory_percent)

    def encoder(self, at_us: int, percent: int) -> None:
        """The device's encoder utilisation."""
        self._record("encoder", at_us, percent)

    def decoder(self, at_us: int, percent: int) -> None:
        """The device's decoder utilisation."""
        self._record("decoder", at_us, percent)

    def clocks(self, at_us: int, *, graphics_mhz: int, sm_mhz: int, memory_mhz: int, video_mhz: int) -> None:
        """Current clocks."""
        self._record("clocks", at_us, graphics_mhz, sm_mhz, memory_mhz, video_mhz)

    def bar1(self, at_us: int, *, total_bytes: int, used_bytes: int) -> None:
        """BAR1 memory."""
        self._record("bar1", at_us, total_bytes, used_bytes)

    def ecc_mode(self, at_us: int, *, enabled: bool) -> None:
        """ECC mode, both current and pending."""
        self._record("ecc_mode", at_us, int(enabled))

    def ecc(
        self,
        at_us: int,
        *,
        corrected: int,
        uncorrected: int,
        aggregate_corrected: int | None = None,
        aggregate_uncorrected: int | None = None,
    ) -> None:
        """ECC errors: volatile, and aggregate (the same by default)."""
        aggregate = (
            corrected if aggregate_corrected is None else aggregate_corrected,
            uncorrected if aggregate_uncorrected is None else aggregate_uncorrected,
        )
        self._record("ecc", at_us, corrected, uncorrected, *aggregate)

    def persistence(self, at_us: int, *, enabled: bool) -> None:
        """Persistence mode."""
        self._record("persistence", at_us, int(enabled))

    def sms(self, at_us: int, count: int) -> None:
        """Multiprocessors of the largest MIG instance."""
        self._record("sms", at_us, count)

    def pstate(self, at_us: int, state: int) -> None:
        """Performance state, 0 to 15."""
        self._record("pstate", at_us, state)

    def compute_mode(self, at_us: int, mode: int) -> None:
        """Compute mode, 0 (default) to 3 (exclusive process)."""
        self._record("compute_mode", at_us, mode)

    # ---- processes

    def sample(
        self, at_us: int, pid: int, sm: int = 100, *, memory: int = 0, encoder: int = 0, decoder: int = 0
    ) -> None:
        """A sample of the ring in percent; pid 0: no process was active. Samples with equal times are one sample."""
        self._record("sample", at_us, pid, sm if pid else 0, memory, encoder, decoder)

    def rows(self, at_us: int, rows: Iterable[Row]) -> None:
        """The rows of every utilisation call from now on, instead of the ring's."""
        self._record("rows", at_us, *rows)

    def accounting_mode(self, at_us: int, *, enabled: bool) -> None:
        """Accounting mode."""
        self._record("accounting_mode", at_us, int(enabled))

    def accounting(
        self,
        at_us: int,
        pid: int,
        *,
        start_us: int,
        time_ms: int = 0,
        running: bool = True,
        gpu_percent: int | None = 0,
        memory_percent: int | None = 0,
        max_memory_bytes: int | None = 0,
    ) -> None:
        """A process's accounting from now on; ``time_ms`` is 0 while it runs."""
        figures = (gpu_percent, memory_percent, max_memory_bytes)
        given = ("-" if figure is None else figure for figure in figures)
        self._record("accounting", at_us, pid, *given, time_ms, start_us, int(running))

    def forget_accounting(self, at_us: int, pid: int) -> None:
        """The process's accounting record is overwritten."""
        self._record("accounting", at_us, pid, "-")

    # ---- MIG, events

    def mig_mode(self, at_us: int, *, enabled: bool, pending: bool | None = None) -> None:
        """MIG mode; pending is the current mode by default."""
        self._record("mig_mode", at_us, int(enabled), *([] if pending is None else [int(pending)]))

    def mig(
        self,
        from_us: int,
        slot: int,
        *,
        uuid: str,
        gpu_instance_id: int,
        compute_instance_id: int = 0,
        name: str = "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        sm_count: int = 16,
        gpu_slices: int = 1,
        compute_slices: int = 1,
        memory_mb: int = 9856,
        until_us: int | None = None,
    ) -> WorldMig:
        """A MIG instance that exists in this slot from ``from_us`` until ``until_us`` (``None``: for ever)."""
        figures = (gpu_instance_id, compute_instance_id, sm_count, gpu_slices, compute_slices, memory_mb)
        span = f"{from_us} {_until(until_us)}"
        self._lines.append(f"mig {span} {self.ref} {slot} {' '.join(map(str, figures))} {uuid} {name}")
        return WorldMig(self._lines, f"{self.ref}/{slot}")

    def event(self, at_us: int, kind: int | Literal["ecc_single", "ecc_double", "pstate", "clock"], data: int) -> None:
        """An event of this type with this data."""
        self._record("event", at_us, kind, data)

    def xid(self, at_us: int, code: int) -> None:
        """A critical XID error."""
        self._record("event", at_us, "xid", code)

    def typical(self, at_us: int = 0) -> None:
        """Plausible figures for everything: a healthy, idle 80 GB board without MIG. Later records override."""
        self.memory(at_us, total_bytes=80 << 30, reserved_bytes=600 << 20, used_bytes=4 << 20)
        self.bar1(at_us, total_bytes=128 << 30, used_bytes=1 << 20)
        self.no_processes(at_us)
        self.energy_mj(at_us, 1_000_000)
        self.power_mw(at_us, 70_000)
        self.power_limit_mw(at_us, 700_000)
        self.temperature_c(at_us, 34)
        self.memory_temperature_c(at_us, 42)
        self.utilization(at_us, 0, 0)
        self.encoder(at_us, 0)
        self.decoder(at_us, 0)
        self.clocks(at_us, graphics_mhz=345, sm_mhz=345, memory_mhz=2619, video_mhz=765)
        self.max_clocks(graphics_mhz=1980, sm_mhz=1980, memory_mhz=2619, video_mhz=1545)
        self.ecc_mode(at_us, enabled=True)
        self.ecc(at_us, corrected=0, uncorrected=0)
        self.persistence(at_us, enabled=True)
        self.pstate(at_us, 0)
        self.compute_mode(at_us, 0)
        self.mig_mode(at_us, enabled=False)
        self.accounting_mode(at_us, enabled=False)


class World:
    """A host with its GPUs and events."""

    def __init__(
        self,
        *,
        driver_version: str = "580.65.06",
        nvml_version: str = "13.580.65.06",
        cuda_version: int = 13000,
        epoch_us: int | None = None,
        root: bool | None = None,
    ) -> None:
        self._lines = [f"driver_version {driver_version}", f"nvml_version {nvml_version}"]
        self._lines.append(f"cuda_version {cuda_version}")
        self._gpus = 0
        if epoch_us is not None:
            self._lines.append(f"epoch_us {epoch_us}")
        if root is not None:  # otherwise the effective user decides
            self._lines.append(f"root {int(root)}")

    def gpu(
        self,
        uuid: str | None = None,
        *,
        name: str = "NVIDIA H100 80GB HBM3",
        minor: int | None = None,
        pci_bus_id: str | None = None,
        serial: str | None = None,
        compute_capability: tuple[int, int] = (9, 0),
    ) -> WorldGpu:
        """Add the next GPU. Its index determines defaults of its identity."""
        index = self._gpus
        self._gpus += 1
        self._lines += [
            f"gpu {index} {uuid or f'GPU-00000000-0000-4000-8000-{index:012d}'} {name}",
            f"minor {index} {index if minor is None else minor}",
            f"pci {index} {pci_bus_id or f'00000000:{0x10 + index:02X}:00.0'} 0x233010DE 0x16C110DE",
            f"serial {index} {serial or f'16502{index:08d}'}",
            f"brand {index} 14",
            f"architecture {index} {compute_capability[0]}",
            f"capability {index} {compute_capability[0]} {compute_capability[1]}",
        ]
        return WorldGpu(self._lines, index)

    def a100(self, listed: Mapping[int, int], *, used_bytes: int | None = None, uuid: str = "GPU-one") -> WorldGpu:
        """Add an A100 that draws 100 W for ten minutes, with 80 GiB, 1 GiB of them reserved.

        ``listed`` are the bytes of the compute list by pid, and ``used_bytes`` is their sum by default.
        """
        gpu = self.gpu(uuid, name="NVIDIA A100-SXM4-80GB")
        gpu.typical()
        used = sum(listed.values()) if used_bytes is None else used_bytes
        gpu.memory(0, total_bytes=80 << 30, reserved_bytes=1 << 30, used_bytes=used)
        gpu.compute(0, [Listed(pid, held) for pid, held in listed.items()])
        gpu.energy_steps(0, 600_000_000, 100)
        return gpu

    def process_name(self, pid: int, name: str) -> None:
        """The answer of ``nvmlSystemGetProcessName`` for this pid."""
        self._lines.append(f"process_name {pid} {name}")

    def error(
        self,
        code: int,
        *,
        on: _Subject | None = None,
        function: str = "*",
        from_us: int = 0,
        until_us: int | None = None,
    ) -> None:
        """Calls of a function (a name, or a prefix and ``*``) on a device fail with this code."""
        self._fault("error", on, function, from_us, until_us, code)

    def latency(
        self,
        delay_ms: int,
        *,
        on: _Subject | None = None,
        function: str = "*",
        from_us: int = 0,
        until_us: int | None = None,
    ) -> None:
        """Such calls take this much longer, in real time."""
        self._fault("latency", on, function, from_us, until_us, delay_ms)

    def hang(
        self, *, on: _Subject | None = None, function: str = "*", from_us: int = 0, until_us: int | None = None
    ) -> None:
        """Such calls do not return before world time ``until_us``; ``None``: never."""
        self._fault("hang", on, function, from_us, until_us)

    def _fault(
        self, kind: str, on: _Subject | None, function: str, from_us: int, until_us: int | None, *amount: int
    ) -> None:
        target = "*" if on is None else on.ref
        self._lines.append(" ".join(map(str, (kind, from_us, _until(until_us), target, function, *amount))))

    def text(self) -> str:
        """The world as the stub reads it."""
        return "\n".join(self._lines) + "\n"

    def environment(self, lib_dir: Path, directory: Path) -> dict[str, str]:
        """Write the world into a directory; the variables of a process that plays it."""
        return {"LD_LIBRARY_PATH": str(lib_dir), **stub_variables(self.write(directory / "world.txt"))}

    def write(self, path: Path) -> Path:
        """Write the file with a rename, so that a concurrent reader gets this world or the previous one."""
        draft = path.with_name(path.name + ".draft")
        draft.write_text(self.text(), encoding="utf-8")
        return draft.replace(path)


def _until(until_us: int | None) -> str:
    return "-" if until_us is None else str(until_us)
