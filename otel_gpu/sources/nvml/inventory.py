"""Inventory of GPUs: a GPU that was identified once stays in every read, with or without figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import OtelGpuError
from otel_gpu.model import DriverFacts, GpuHealth, GpuIdentity, GpuReading, SourceState
from otel_gpu.sources.base import GpuRead
from otel_gpu.sources.nvml.events import XidCount
from otel_gpu.sources.nvml.slot import Asleep, Slot

_REMOVED_RETENTION_NS: Final = 300_000_000_000
"""How long a GPU that is no longer enumerated is reported as failed."""

_REMOVED: Final = "GPU is no longer present: it was removed, or the driver does not find it; see lspci and dmesg"


@dataclass(slots=True)
class _ListedGpu:
    identity: GpuIdentity
    listed_ns: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class UnidentifiedGpu:
    """A GPU that NVML counts and that was never identified: its index and the reason."""

    index: int
    health: GpuHealth
    reason: str


class GpuInventory:
    """Builds reads from the outcomes of slots, including GPUs without an answer.

    ``xid_counts`` are the agent's totals by UUID, which a lost GPU keeps, including the XID of its loss.
    """

    def __init__(self, clock: Clock, xid_counts: Mapping[str, XidCount]) -> None:
        self._clock = clock
        self._xid_counts = xid_counts
        self._known: dict[str, _ListedGpu] = {}
        self._recalled: tuple[GpuIdentity, ...] = ()
        self._all_failed_reason: str | None = None
        self.unidentified: tuple[UnidentifiedGpu, ...] = ()

    def recall(self, gpus: Sequence[GpuIdentity]) -> None:
        """Add GPUs of an earlier run of the agent, so that a missing one is identified.

        They are in every read from the first one on, even if no driver answers.
        """
        self._recalled = tuple(gpus)

    def build_read(
        self, slots: Sequence[Slot], outcomes: Sequence[GpuReading | OtelGpuError], driver: DriverFacts | None
    ) -> GpuRead:
        """The read of a pass: the reading of each GPU, or the reason why it has none."""
        gpus, self.unidentified = self._identify(slots, outcomes)
        gpus += self._removed({gpu.identity.uuid for gpu in gpus})
        self._remember(gpus)
        failed = [gpu for gpu in gpus if gpu.reason is not None and gpu.health is not GpuHealth.ASLEEP]
        reasons = [f"GPU {gpu.identity.index}: {gpu.reason}" for gpu in failed]
        reasons += [f"GPU {gpu.index}: {gpu.reason}" for gpu in self.unidentified]
        if not reasons:
            self._all_failed_reason = None
            return GpuRead(tuple(gpus), driver)
        awake = [gpu for gpu in gpus if gpu.health is not GpuHealth.FAILED]
        state = SourceState.DEGRADED if awake else SourceState.UNAVAILABLE
        reason = "; ".join(reasons)
        by_gpu = not self.unidentified
        self._all_failed_reason = reason if by_gpu and not awake else None
        return GpuRead(tuple(gpus), driver, state, reason, len(reasons), by_gpu)

    def build_driver_failure(
        self,
        slots: Sequence[Slot],
        outcomes: Sequence[GpuReading | OtelGpuError],
        driver: DriverFacts | None,
        reason: str,
    ) -> GpuRead:
        """The read of a pass in which the driver failed, with the readings before the failure."""
        gpus, _ = self._identify(slots, outcomes)
        self._remember(gpus)
        answered = {gpu.identity.uuid: gpu for gpu in gpus if gpu.answered}
        read = self.build_unavailable(reason)
        all_gpus = tuple(answered.get(gpu.identity.uuid, gpu) for gpu in read.gpus)
        return GpuRead(all_gpus, driver, SourceState.UNAVAILABLE, reason, read.errors)

    def build_unavailable(self, reason: str) -> GpuRead:
        """The read while no driver answers."""
        self._add_recalled()
        by_gpu = reason == self._all_failed_reason
        now_ns = self._clock.monotonic_ns()  # without an enumeration no GPU counts as removed
        for known in self._known.values():
            known.listed_ns = now_ns
        gpus = [
            self._without_figures(known.identity, GpuHealth.FAILED, (known.reason if by_gpu else None) or reason)
            for known in self._known.values()
        ]
        return GpuRead(tuple(gpus), None, SourceState.UNAVAILABLE, reason, 1, by_gpu)

    def build_all_asleep(self, count: int) -> GpuRead:
        """The read while all ``count`` GPUs sleep. NVML need not be initialised."""
        self._add_recalled()
        reason = str(Asleep())
        gpus = tuple(self._without_figures(known.identity, GpuHealth.ASLEEP, reason) for known in self._known.values())
        if gpus:
            return GpuRead(gpus)
        # A GPU that was never awake has no identity. Nothing has failed: /sys answered.
        reason = f"every GPU is {reason}: figures appear once one is in use"
        return GpuRead(state=SourceState.DEGRADED, reason=reason, asleep=count)

    def _identify(
        self, slots: Sequence[Slot], outcomes: Sequence[GpuReading | OtelGpuError]
    ) -> tuple[list[GpuReading], tuple[UnidentifiedGpu, ...]]:
        """The GPUs in the order of NVML's indices, and those without an identity."""
        self._add_recalled()
        readings = [outcome for outcome in outcomes if isinstance(outcome, GpuReading)]
        if len(readings) == len(slots):
            return readings, ()
        gpus: list[GpuReading] = []
        unidentified: list[UnidentifiedGpu] = []
        identified = {slot.identity.uuid for slot in slots if slot.identity is not None}
        unclaimed = {
            known.identity.index: known.identity for uuid, known in self._known.items() if uuid not in identified
        }
        for slot, outcome in zip(slots, outcomes, strict=True):
            if isinstance(outcome, GpuReading):
                gpus.append(outcome)
                continue
            # A GPU that fails before it is identified is probably the one that had this index before the driver was
            # reloaded or the agent restarted.
            identity = slot.identity or unclaimed.get(slot.index)
            health = GpuHealth.ASLEEP if isinstance(outcome, Asleep) else GpuHealth.FAILED
            if identity is None:
                unidentified.append(UnidentifiedGpu(slot.index, health, str(outcome)))
            else:
                gpus.append(self._without_figures(identity, health, str(outcome)))
        return gpus, tuple(unidentified)

    def _add_recalled(self) -> None:
        if not self._recalled:
            return
        now_ns = self._clock.monotonic_ns()
        for identity in self._recalled:
            self._known.setdefault(identity.uuid, _ListedGpu(identity, now_ns, None))
        self._recalled = ()

    def _removed(self, listed: set[str]) -> list[GpuReading]:
        if self._known.keys() <= listed:
            return []
        now_ns = self._clock.monotonic_ns()
        self._known = {
            uuid: known
            for uuid, known in self._known.items()
            if uuid in listed or now_ns - known.listed_ns < _REMOVED_RETENTION_NS
        }
        return [
            self._without_figures(known.identity, GpuHealth.FAILED, _REMOVED)
            for uuid, known in self._known.items()
            if uuid not in listed
        ]

    def _remember(self, gpus: Sequence[GpuReading]) -> None:
        now_ns = self._clock.monotonic_ns()
        for gpu in gpus:
            known = self._known.get(gpu.identity.uuid)
            if known is None:
                self._known[gpu.identity.uuid] = _ListedGpu(gpu.identity, now_ns, gpu.reason)
                continue
            if gpu.reason != _REMOVED:
                known.listed_ns = now_ns
            known.identity, known.reason = gpu.identity, gpu.reason

    def _without_figures(self, identity: GpuIdentity, health: GpuHealth, reason: str) -> GpuReading:
        count = self._xid_counts.get(identity.uuid)
        return GpuReading(
            identity,
            self._clock.monotonic_ns(),
            xid_errors=None if count is None else count.errors,
            last_xid=None if count is None else count.last_xid,
            health=health,
            reason=reason,
        )
