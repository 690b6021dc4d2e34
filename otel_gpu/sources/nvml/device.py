"""One physical GPU: its identity, read once, and a reading of its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from otel_gpu.clock import Clock
from otel_gpu.errors import NoValue, OtelGpuError, Unsupported
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
from otel_gpu.sources.nvml.buffers import (
    AVERAGE_POWER_FIELD,
    CORRECTED_FIELD,
    ENERGY_FIELD,
    INSTANT_POWER_FIELD,
    POWER_LIMIT_FIELD,
    UNCORRECTED_FIELD,
    accounting_pids_buffer,
    field_buffer,
    utilization_buffer,
)
from otel_gpu.sources.nvml.events import XidEvents
from otel_gpu.sources.nvml.mig import MIG_MODE, MigReader
from otel_gpu.sources.nvml.queries import DeviceQueries

T = TypeVar("T")

_OK: Final = GpuHealth.OK
"""Each access to a member of an enumeration is a lookup."""

_OVERLAP_US: Final = 1_000_000
"""Overlap of utilisation windows. With the latest row's timestamp alone, the window grows to the whole ring after a
quiet period, and a burst is averaged away."""

_ACCOUNTING_MODE: Final = "accounting mode"
SLOW_S: Final = 15.0
"""For temperature and video engines, each a call of its own: the default export interval."""

SLOWER_S: Final = 30.0
"""For figures that an operator changes, and for clocks on which no attribution depends."""

SLOWEST_S: Final = 60.0


class Device:
    """A reader of one GPU. Not thread-safe: one thread uses it at a time."""

    def __init__(self, api: NvmlApi, clock: Clock, events: XidEvents, index: int) -> None:
        self._api = api
        self._clock = clock
        self._events = events
        self._handle: Handle = api.handle(index)
        self._queries = DeviceQueries()
        self._mig = MigReader(api)
        self._is_mig: bool | None = None
        self._listed: tuple[ListedProcess, ...] | None = None
        self._lists_mig = False
        self._fields = field_buffer()
        self._rows = utilization_buffer()
        self._pids = accounting_pids_buffer()
        self._latest_row_us = 0
        self._last_read_us: int | None = None
        self._ended_pids: frozenset[int] | None = None
        self.identity = self._identify(index)
        events.watch(self._handle, self.identity.uuid)

    def _identify(self, index: int) -> GpuIdentity:
        api, handle, queries = self._api, self._handle, self._queries
        uuid = api.uuid(handle)
        return GpuIdentity(
            index=index,
            uuid=uuid,
            name=queries.query("name", api.name, handle) or "NVIDIA GPU",
            minor=queries.query("minor", api.minor, handle),
            pci_bus_id=queries.query("pci", api.pci_bus_id, handle),
            serial=queries.query("serial", api.serial, handle),
        )

    def read(self) -> GpuReading:
        """A reading. The energy counter comes before utilisation, so that the rows cover the energy."""
        api, handle, queries = self._api, self._handle, self._queries
        taken_at_ns = self._clock.monotonic_ns()
        queries.begin(taken_at_ns)
        fields = queries.query("field values", api.fields, handle, self._fields) or {}
        energy_mj = _else(_energy_mj(fields), queries, "energy", api.energy_mj, handle)
        power_w = _else(_power_w(fields), queries, "power", api.power_w, handle)
        processes = queries.processes(api, handle)
        mig = self._read_mig(processes)
        utilization = self._read_utilization()
        ratios = queries.query("utilization", api.utilization_ratios, handle)
        ecc = _else(_ecc(fields), queries, "ecc", api.ecc_errors, handle)
        memory = queries.memory(api, handle)
        queries.check_access()
        xid_errors, last_xid = self._events.count(self.identity.uuid)
        return GpuReading(
            identity=self.identity,
            taken_at_ns=taken_at_ns,
            memory=memory,
            processes=processes,
            utilization=utilization,
            energy_mj=energy_mj,
            power_w=power_w,
            power_limit_w=_else(
                _watts(fields.get(POWER_LIMIT_FIELD)), queries, "power limit", api.power_limit_w, handle
            ),
            temperature_c=queries.temperature_c(api, handle, every_s=SLOW_S),
            gpu_ratio=ratios[0] if ratios else None,
            memory_controller_ratio=ratios[1] if ratios else None,
            encoder_ratio=queries.query("encoder", api.encoder_ratio, handle, every_s=SLOW_S),
            decoder_ratio=queries.query("decoder", api.decoder_ratio, handle, every_s=SLOW_S),
            sm_clock_mhz=queries.query("sm clock", api.sm_clock_mhz, handle),
            memory_clock_mhz=queries.query("memory clock", api.memory_clock_mhz, handle, every_s=SLOWER_S),
            ecc_corrected=ecc[0] if ecc else None,
            ecc_uncorrected=ecc[1] if ecc else None,
            xid_errors=xid_errors,
            last_xid=last_xid,
            persistence_mode=queries.query("persistence mode", api.persistence_mode, handle, every_s=SLOWEST_S),
            mig=mig,
            sm_count=self._mig.largest_sms(handle, queries) if mig is not None else None,
            accounting=self._read_accounting(processes),
            health=_OK if (missing := queries.missing) is None else GpuHealth.DEGRADED,
            reason=missing,
        )

    def _read_mig(self, listed: tuple[ListedProcess, ...] | None) -> tuple[MigReading, ...] | None:
        queries = self._queries
        refused = not (queries.supports("process utilization") and queries.supports("utilization"))
        if listed is not self._listed:
            self._listed = listed
            self._lists_mig = any(process.gpu_instance_id is not None for process in listed or ())
        if self._is_mig or refused or self._lists_mig:
            queries.expire(MIG_MODE)  # MIG is enabled, or its answers suggest that it now is
        mig = self._mig.read(self._handle, queries, every_s=SLOWER_S)
        if self._is_mig is not None and self._is_mig != (mig is not None):
            queries.reset()
        self._is_mig = mig is not None
        return mig

    def _read_utilization(self) -> UtilizationRead | None:
        read_at_us = self._clock.wall_ns() // 1000
        if self._last_read_us is None or max(self._last_read_us, self._latest_row_us) > read_at_us:
            # The first read, or the wall clock was set back. Timestamps in the future would hide all work until then.
            self._last_read_us, self._latest_row_us = read_at_us, 0
        since_us = max(self._latest_row_us, self._last_read_us - _OVERLAP_US)
        rows = self._queries.query("process utilization", self._api.utilization, self._handle, since_us, self._rows)
        if rows is None:
            return None
        self._last_read_us = read_at_us
        if rows:
            # A timestamp in the future is invalid, and would hide the rows before it.
            stamps = (row.timestamp_us for row in rows if row.timestamp_us <= read_at_us + _OVERLAP_US)
            self._latest_row_us = max(stamps, default=self._latest_row_us)
        return UtilizationRead(since_us=since_us, read_at_us=read_at_us, rows=rows)

    def _read_accounting(self, listed: tuple[ListedProcess, ...] | None) -> tuple[AccountingRecord, ...] | None:
        """Records of processes that ended since the last read; ``None`` without accounting mode.

        Processes that ended before the first read are not reported.
        """
        api, handle, queries = self._api, self._handle, self._queries
        if not queries.query(_ACCOUNTING_MODE, api.accounting_enabled, handle, every_s=SLOWER_S):
            self._ended_pids = None
            return None
        pids = queries.query("accounting pids", self._accounting_pids)
        if pids is None:
            return None
        ended = pids - {process.pid for process in listed or ()}
        if self._ended_pids is None:
            self._ended_pids = ended
            return ()
        records = []
        for pid in sorted(ended - self._ended_pids):
            try:
                record = api.accounting_record(handle, pid)
            except OtelGpuError:
                ended -= {pid}  # not readable yet, or dropped from the driver's buffer: try again
                continue
            if record.running:
                ended -= {pid}
            else:
                records.append(record)
        self._ended_pids = ended
        return tuple(records)

    def _accounting_pids(self) -> frozenset[int]:
        try:
            return self._api.accounting_pids(self._handle, self._pids)
        except Unsupported as error:  # disabled since the mode was read
            self._queries.expire(_ACCOUNTING_MODE)
            raise NoValue(str(error)) from None


# ---------------------------------------------------------------------------- field values

_FieldValues = Mapping[int, float]


def _else(
    value: T | None, queries: DeviceQueries, figure: str, function: Callable[[Handle], T], handle: Handle
) -> T | None:
    """A field value, or the figure by its own call: old drivers support few fields."""
    return queries.query(figure, function, handle) if value is None else value


def _energy_mj(values: _FieldValues) -> int | None:
    found = values.get(ENERGY_FIELD)
    return None if found is None else int(found)


def _power_w(values: _FieldValues) -> float | None:
    """The value of ``nvmlDeviceGetPowerUsage``: an average where there is one (nvml.h), else current power."""
    return _watts(values.get(AVERAGE_POWER_FIELD, values.get(INSTANT_POWER_FIELD)))


def _watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _ecc(values: _FieldValues) -> tuple[int, int] | None:
    if CORRECTED_FIELD not in values or UNCORRECTED_FIELD not in values:
        return None
    return int(values[CORRECTED_FIELD]), int(values[UNCORRECTED_FIELD])
