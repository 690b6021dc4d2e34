"""The rules together: one Snapshot per cycle in, one Report out, and the ledger in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from otel_gpu.attribution.checkpoint import activity_state, ledger_state, restore_activity, restore_ledger
from otel_gpu.attribution.cycle import Cycle, LedgerTime
from otel_gpu.attribution.gpu import GpuResult, GpuTracker
from otel_gpu.attribution.keys import DeviceKey
from otel_gpu.attribution.ledger import Ledger
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.attribution.posting import Posting, admit_unused_grants, post, post_silence
from otel_gpu.attribution.report import AttributedGpu, build_report
from otel_gpu.attribution.residents import (
    HostProcesses,
    Residents,
    ShortLivedProcesses,
    find_residents,
)
from otel_gpu.attribution.saved_values import restoring, whole
from otel_gpu.model import GpuIdentity, GpuReading, Report, Snapshot, WorkloadRef


class Attributor:
    """Turns Snapshots, one after the other, into Reports. Pure: the time is in the Snapshots."""

    def __init__(self, options: AttributionOptions | None = None) -> None:
        self._options = options or AttributionOptions()
        self._ledger: Ledger | None = None
        """Opened by the first cycle, which is its epoch."""
        self._trackers: dict[str, GpuTracker] = {}
        self._short_lived = ShortLivedProcesses()
        self._previous_ns: int | None = None
        self._wall_ns = 0
        self._anomalies = 0

    @property
    def watched_pids(self) -> frozenset[int]:
        """The processes that the ledger has on a GPU: /proc has to show whether they still run."""
        ledger = self._ledger
        return frozenset() if ledger is None else frozenset(at.process.pid for at, _ in ledger.all_present())

    @property
    def held_workloads(self) -> frozenset[WorkloadRef]:
        """Workloads that are held back while their names are looked up; they may have left meanwhile."""
        if self._ledger is None:
            return frozenset()
        accounts = self._ledger.workloads.by_key.values()
        return frozenset(each.ref for each in accounts if self._ledger.namings.is_waiting(each.ref))

    @property
    def known_gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU in the ledger, by index, UUID and name."""
        gpus = {} if self._ledger is None else self._ledger.gpus
        return tuple(GpuIdentity(gpu.index, uuid, gpu.name) for uuid, gpu in gpus.items() if gpu.index is not None)

    def observe(self, snapshot: Snapshot) -> Report:
        """Take in a cycle: find residents and names, attribute each GPU, post to the ledger, build the Report."""
        ledger = self._ledger
        if ledger is None:
            ledger = self._ledger = new_ledger(self._options, snapshot.wall_ns)
        cycle = self._begin_cycle(snapshot)
        host = HostProcesses.of(snapshot.processes)
        residents = {gpu.identity.uuid: find_residents(gpu, host) for gpu in snapshot.gpus if gpu.answered}
        refs = _workloads_in_use(ledger, residents, snapshot)
        ledger.namings.observe(refs, snapshot.names, pending=snapshot.names_pending)
        attributed = [self._observe_gpu(ledger, gpu, residents.get(gpu.identity.uuid), cycle) for gpu in snapshot.gpus]
        absent = {*self._trackers, *ledger.assignments} - {gpu.identity.uuid for gpu in snapshot.gpus}
        for uuid in sorted(absent):
            self._observe_silence(ledger, uuid, cycle)
        devices = {DeviceKey(gpu.identity.uuid, "") for gpu in snapshot.gpus}
        devices |= {DeviceKey(gpu.identity.uuid, mig.uuid) for gpu in snapshot.gpus for mig in gpu.mig or ()}
        ledger.close_cycle(cycle.time, devices)
        window_s = cycle.window_us / 1e6 if cycle.window_us else None
        return build_report(snapshot, ledger, attributed, self._options, window_s=window_s, anomalies=self._anomalies)

    def _begin_cycle(self, snapshot: Snapshot) -> Cycle:
        """The cycle's time. The ledger's clocks never go back, whatever the host's do."""
        before_ns = self._previous_ns
        now_ns = snapshot.monotonic_ns if before_ns is None else max(before_ns, snapshot.monotonic_ns)
        wall_ns = max(self._wall_ns, snapshot.wall_ns)
        time = LedgerTime(now_ns, self._wall_ns or wall_ns, wall_ns)
        self._previous_ns, self._wall_ns = now_ns, wall_ns
        return Cycle(
            wall_s=snapshot.wall_ns / 1e9,
            now_s=snapshot.monotonic_ns / 1e9,
            window_us=0 if before_ns is None else (now_ns - before_ns) // 1000,
            time=time,
            processes=snapshot.processes,
            grants=snapshot.grants,
            pids_complete=snapshot.pids_complete,
            may_infer=snapshot.infers,
        )

    def _observe_gpu(self, ledger: Ledger, reading: GpuReading, found: Residents | None, cycle: Cycle) -> AttributedGpu:
        """One GPU of the Snapshot. ``found`` is ``None`` where it did not answer."""
        uuid = reading.identity.uuid
        if uuid not in self._trackers:
            self._trackers[uuid] = GpuTracker(self._options)
        gpu = ledger.gpus[uuid]
        gpu.name, gpu.index = reading.identity.name, reading.identity.index
        gpu.profiles |= {mig.uuid: mig.profile for mig in reading.mig or () if mig.profile is not None}
        if found is None:
            return AttributedGpu(reading, None, self._observe_silence(ledger, uuid, cycle).usages)
        result = self._track(ledger, reading, found, cycle)
        self._anomalies += result.anomalies
        posting = post(ledger, result, cycle, self._short_lived)
        self._trackers[uuid].forget(posting.departed)
        return AttributedGpu(reading, result, posting.usages)

    def _track(self, ledger: Ledger, reading: GpuReading, found: Residents, cycle: Cycle) -> GpuResult:
        """Admit the residents to the ledger, and apply the rules of one GPU to the cycle."""
        uuid = reading.identity.uuid
        assignments = {at: ledger.admit(resident, cycle.time) for at, resident in found.items()}
        # For every rule, a process belongs to the workload it had when it was first seen.
        residents = dict(found)
        for at, assignment in assignments.items():
            if found[at].ref != assignment.ref:
                residents[at] = found[at]._replace(ref=assignment.ref)
        short_lived = []
        if reading.accounting:
            present_pids = {at.process.pid for at, _ in ledger.present(uuid)}
            epoch_us, now_us = ledger.epoch_ns // 1000, cycle.time.wall_ns // 1000
            short_lived = self._short_lived.find(
                uuid, reading.accounting, present_pids, epoch_us=epoch_us, now_us=now_us
            )
        grants = admit_unused_grants(ledger, uuid, cycle)
        return self._trackers[uuid].observe(
            reading,
            residents,
            cycle,
            owners={at: assignment.workload.key.subject for at, assignment in assignments.items()},
            grant_ages_s={account.key.subject: cycle.age_s(grant.since_s) for account, grant in grants.items()},
            short_lived=short_lived,
        )

    def _observe_silence(self, ledger: Ledger, uuid: str, cycle: Cycle) -> Posting:
        """A GPU that did not answer, or is absent from the Snapshot."""
        if uuid in self._trackers:
            self._trackers[uuid].add_gap(cycle.window_us, lambda at: ledger.assignment(at) is None)
        return post_silence(ledger, uuid, cycle, self._short_lived)

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain data; empty before the first cycle.

        Keys stay as the first version wrote them ("books", "holdings", "span", ...), so that its checkpoints load.
        """
        if self._ledger is None:
            return {}
        return {
            "ledger": ledger_state(self._ledger, now_ns=self._previous_ns or 0),
            "books": {**activity_state(self._ledger), "short_lived": self._short_lived.to_state()},
            "gpus": {uuid: tracker.to_state() for uuid, tracker in sorted(self._trackers.items())},
            "anomalies": self._anomalies,
            "wall_ns": self._wall_ns,
            "at_ns": self._previous_ns,
        }

    @classmethod
    def from_state(cls, options: AttributionOptions, data: Any, *, now_ns: int, same_boot: bool) -> Self:
        """Continue where an earlier run ended; ValueError if this is not what ``to_state`` gave.

        ``now_ns`` is monotonic. After a reboot (``same_boot`` false) counters start at 0 and every process has left.
        """
        restored = cls(options)
        if data == {}:
            return restored
        with restoring("attribution"):
            ledger = new_ledger(options, 0)
            restore_ledger(ledger, data["ledger"], now_ns=now_ns)
            restore_activity(ledger, data["books"])
            restored._short_lived = ShortLivedProcesses.from_state(data["books"]["short_lived"])
            restored._trackers = {
                str(uuid): GpuTracker.from_state(options, state, same_boot=same_boot)
                for uuid, state in data["gpus"].items()
            }
            restored._anomalies, restored._wall_ns = whole(data["anomalies"]), whole(data["wall_ns"])
            absent_us = (now_ns - whole(data["at_ns"])) // 1000 if same_boot else 0
        if absent_us > 0:
            for tracker in restored._trackers.values():
                tracker.add_absence(absent_us)
        restored._ledger = ledger
        restored._previous_ns = now_ns
        return restored


def new_ledger(options: AttributionOptions, epoch_ns: int) -> Ledger:
    """An empty ledger."""
    return Ledger(
        epoch_ns,
        retention_ns=round(options.retention_s * 1e9),
        max_processes=options.max_processes,
        max_workloads=options.max_workloads,
    )


def _workloads_in_use(ledger: Ledger, residents: Mapping[str, Residents], snapshot: Snapshot) -> Iterator[WorkloadRef]:
    """Every workload with a process on a GPU, by the ledger or by this cycle, or with a grant."""
    yield from (grant.workload for grant in snapshot.grants if not grant.possible)
    yield from (assignment.ref for _, assignment in ledger.all_present())
    for of_gpu in residents.values():
        for at, resident in of_gpu.items():
            assignment = ledger.assignment(at)
            yield resident.ref if assignment is None else assignment.ref
