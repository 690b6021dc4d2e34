"""One physical GPU: its identity, read once, and one pass over its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from otel_gpu.clock import Clock
from otel_gpu.errors import Gone, OtelGpuError, Unsupported
from otel_gpu.model import (
    AccountingRecord,
    GpuHealth,
    GpuIdentity,
    GpuReading,
    ListedProcess,
    MigReading,
    UtilizationRead,
)
from otel_gpu.sources.nvml.api import Handle, NvmlApi
from otel_gpu.sources.nvml.entries import (
    AVERAGE_POWER_FIELD,
    CORRECTED_FIELD,
    ENERGY_FIELD,
    INSTANT_POWER_FIELD,
    POWER_LIMIT_FIELD,
    UNCORRECTED_FIELD,
    booked_pids,
    fields,
    utilization_rows,
)
from otel_gpu.sources.nvml.events import XidEvents
from otel_gpu.sources.nvml.figures import Figures
from otel_gpu.sources.nvml.mig import MIG_MODE, MigReader

T = TypeVar("T")

_OK: Final = GpuHealth.OK
"""A member of an enumeration is looked up anew each time that it is named."""

_OVERLAP_US: Final = 1_000_000
"""How far before the last read utilisation is asked for again. Carrying only the newest timestamp stretches the
window over the whole ring after a quiet spell, and a burst is then averaged away."""

_ACCOUNTING_MODE: Final = "accounting mode"
SLOW_S: Final = 15.0
"""Temperature and video engines: as often as figures are exported by default. Reading each takes a call of its own."""

SLOWER_S: Final = 30.0
"""What somebody changes by hand, and clocks that nobody's energy depends on."""

SLOWEST_S: Final = 60.0


class Device:
    """Reads one GPU. Used by one thread at a time: the GPU's own."""

    def __init__(self, api: NvmlApi, clock: Clock, events: XidEvents, index: int) -> None:
        self._api = api
        self._clock = clock
        self._events = events
        self._handle: Handle = api.handle(index)
        self._figures = Figures()
        self._mig = MigReader(api)
        self._divided: bool | None = None
        self._listed: tuple[ListedProcess, ...] | None = None
        self._lists_instances = False
        self._fields = fields()
        self._rows = utilization_rows()
        self._pids = booked_pids()
        self._newest_row_us = 0
        self._last_read_us: int | None = None
        self._booked_pids: frozenset[int] | None = None
        self.identity = self._identify(index)
        events.watch(self._handle, self.identity.uuid)

    def _identify(self, index: int) -> GpuIdentity:
        api, handle, figures = self._api, self._handle, self._figures
        uuid = api.uuid(handle)
        return GpuIdentity(
            index=index,
            uuid=uuid,
            name=figures.ask("name", api.name, handle) or "NVIDIA GPU",
            minor=figures.ask("minor", api.minor, handle),
            pci_bus_id=figures.ask("pci", api.pci_bus_id, handle),
            serial=figures.ask("serial", api.serial, handle),
        )

    def read(self) -> GpuReading:
        """One pass. The energy counter first, utilisation after it: the rows must cover the joules."""
        api, handle, figures = self._api, self._handle, self._figures
        taken_at_ns = self._clock.monotonic_ns()
        figures.begin(taken_at_ns)
        told = figures.ask("field values", api.fields, handle, self._fields) or {}
        energy_mj = _else(_energy_mj(told), figures, "energy", api.energy_mj, handle)
        power_w = _else(_power_w(told), figures, "power", api.power_w, handle)
        processes = figures.processes(api, handle)
        mig = self._read_mig(processes)
        utilization = self._read_utilization()
        ratios = figures.ask("utilization", api.utilization_ratios, handle)
        ecc = _else(_ecc(told), figures, "ecc", api.ecc_errors, handle)
        memory = figures.memory(api, handle)
        figures.check_access()
        xid_errors, last_xid = self._events.count(self.identity.uuid)
        return GpuReading(
            identity=self.identity,
            taken_at_ns=taken_at_ns,
            memory=memory,
            processes=processes,
            utilization=utilization,
            energy_mj=energy_mj,
            power_w=power_w,
            power_limit_w=_else(_watts(told.get(POWER_LIMIT_FIELD)), figures, "power limit", api.power_limit_w, handle),
            temperature_c=figures.temperature_c(api, handle, every_s=SLOW_S),
            gpu_ratio=ratios[0] if ratios else None,
            memory_controller_ratio=ratios[1] if ratios else None,
            encoder_ratio=figures.ask("encoder", api.encoder_ratio, handle, every_s=SLOW_S),
            decoder_ratio=figures.ask("decoder", api.decoder_ratio, handle, every_s=SLOW_S),
            sm_clock_mhz=figures.ask("sm clock", api.sm_clock_mhz, handle),
            memory_clock_mhz=figures.ask("memory clock", api.memory_clock_mhz, handle, every_s=SLOWER_S),
            ecc_corrected=ecc[0] if ecc else None,
            ecc_uncorrected=ecc[1] if ecc else None,
            xid_errors=xid_errors,
            last_xid=last_xid,
            persistence_mode=figures.ask("persistence mode", api.persistence_mode, handle, every_s=SLOWEST_S),
            mig=mig,
            sm_count=self._mig.largest_sms(handle, figures) if mig is not None else None,
            accounting=self._read_accounting(processes),
            health=_OK if (missing := figures.missing) is None else GpuHealth.DEGRADED,
            reason=missing,
        )

    def _read_mig(self, listed: tuple[ListedProcess, ...] | None) -> tuple[MigReading, ...] | None:
        figures = self._figures
        refused = not (figures.supports("process utilization") and figures.supports("utilization"))
        if listed is not self._listed:
            self._listed = listed
            self._lists_instances = any(process.gpu_instance_id is not None for process in listed or ())
        if self._divided or refused or self._lists_instances:
            figures.ask_anew(MIG_MODE)  # it is divided, or what it tells looks as if it had become so
        mig = self._mig.read(self._handle, figures, every_s=SLOWER_S)
        if self._divided is not None and self._divided != (mig is not None):
            figures.forget()
        self._divided = mig is not None
        return mig

    def _read_utilization(self) -> UtilizationRead | None:
        read_at_us = self._clock.wall_ns() // 1000
        if self._last_read_us is None or max(self._last_read_us, self._newest_row_us) > read_at_us:
            # The first read; or the wall clock was set back, and what is remembered lies in a future that may be
            # hours away: asking from there would hear of no work until then.
            self._last_read_us, self._newest_row_us = read_at_us, 0
        since_us = max(self._newest_row_us, self._last_read_us - _OVERLAP_US)
        rows = self._figures.ask("process utilization", self._api.utilization, self._handle, since_us, self._rows)
        if rows is None:
            return None
        self._last_read_us = read_at_us
        if rows:
            # A stamp from the future is no sample: remembered, it would hide what comes before it.
            stamps = (row.timestamp_us for row in rows if row.timestamp_us <= read_at_us + _OVERLAP_US)
            self._newest_row_us = max(stamps, default=self._newest_row_us)
        return UtilizationRead(since_us=since_us, read_at_us=read_at_us, rows=rows)

    def _read_accounting(self, listed: tuple[ListedProcess, ...] | None) -> tuple[AccountingRecord, ...] | None:
        """Books of processes that ended since the last pass; ``None`` if the driver keeps none.

        What had ended before the first pass is not this agent's to report.
        """
        api, handle, figures = self._api, self._handle, self._figures
        if not figures.ask(_ACCOUNTING_MODE, api.accounting_enabled, handle, every_s=SLOWER_S):
            self._booked_pids = None
            return None
        pids = figures.ask("accounting pids", self._accounting_pids)
        if pids is None:
            return None
        ended = pids - {process.pid for process in listed or ()}
        if self._booked_pids is None:
            self._booked_pids = ended
            return ()
        records = []
        for pid in sorted(ended - self._booked_pids):
            try:
                record = api.accounting_record(handle, pid)
            except OtelGpuError:
                ended -= {pid}  # not readable yet, or pushed out of the driver's buffer: try once more
                continue
            if record.running:
                ended -= {pid}
            else:
                records.append(record)
        self._booked_pids = ended
        return tuple(records)

    def _accounting_pids(self) -> frozenset[int]:
        try:
            return self._api.accounting_pids(self._handle, self._pids)
        except Unsupported as error:  # switched off since its mode was asked for
            self._figures.ask_anew(_ACCOUNTING_MODE)
            raise Gone(str(error)) from None


# ---------------------------------------------------------------------------- field values

_Told = Mapping[int, float]


def _else(told: T | None, figures: Figures, figure: str, question: Callable[[Handle], T], handle: Handle) -> T | None:
    """A figure as the one call told it, or asked for singly: old drivers know few fields."""
    return figures.ask(figure, question, handle) if told is None else told


def _energy_mj(told: _Told) -> int | None:
    found = told.get(ENERGY_FIELD)
    return None if found is None else int(found)


def _power_w(told: _Told) -> float | None:
    """What ``nvmlDeviceGetPowerUsage`` says: an average where the architecture has one (nvml.h), else that instant."""
    return _watts(told.get(AVERAGE_POWER_FIELD, told.get(INSTANT_POWER_FIELD)))


def _watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _ecc(told: _Told) -> tuple[int, int] | None:
    if CORRECTED_FIELD not in told or UNCORRECTED_FIELD not in told:
        return None
    return int(told[CORRECTED_FIELD]), int(told[UNCORRECTED_FIELD])
