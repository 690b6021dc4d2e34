"""Who is there: every GPU that was ever identified keeps its place in the answer while it gives no figures."""

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

_REMEMBERED_NS: Final = 300_000_000_000
"""How long a GPU that is no longer enumerated is told as failed: long enough to be noticed."""

_REMOVED: Final = "GPU is not there any more: it was removed, or the driver does not find it; lspci and dmesg tell more"


@dataclass(slots=True)
class _Known:
    identity: GpuIdentity
    listed_ns: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Nameless:
    """A GPU that NVML counts and that has never said who it is, by its index: why it gives nothing."""

    index: int
    health: GpuHealth
    reason: str


class Roll:
    """Puts the answers of a pass together, and says what is known while there are none.

    ``xid_counts`` are the agent's own, by UUID: a GPU that is lost still has those, the one that told of its loss too.
    """

    def __init__(self, clock: Clock, xid_counts: Mapping[str, XidCount]) -> None:
        self._clock = clock
        self._xid_counts = xid_counts
        self._known: dict[str, _Known] = {}
        self._recalled: tuple[GpuIdentity, ...] = ()
        self._all_failed_because: str | None = None
        self.nameless: tuple[Nameless, ...] = ()

    def recall(self, gpus: Sequence[GpuIdentity]) -> None:
        """Know GPUs that an earlier run of the agent saw, so that one that does not come back has a name.

        They are told of from the first pass on, whether a driver answers or not.
        """
        self._recalled = tuple(gpus)

    def call(
        self, slots: Sequence[Slot], outcomes: Sequence[GpuReading | OtelGpuError], driver: DriverFacts | None
    ) -> GpuRead:
        """The answer of a pass: what each GPU gave, or why it gave nothing."""
        gpus, self.nameless = self._placed(slots, outcomes)
        gpus += self._removed({gpu.identity.uuid for gpu in gpus})
        self._remember(gpus)
        troubles = [gpu for gpu in gpus if gpu.reason is not None and gpu.health is not GpuHealth.ASLEEP]
        reasons = [f"GPU {gpu.identity.index}: {gpu.reason}" for gpu in troubles]
        reasons += [f"GPU {gpu.index}: {gpu.reason}" for gpu in self.nameless]
        if not reasons:
            self._all_failed_because = None
            return GpuRead(tuple(gpus), driver)
        awake = [gpu for gpu in gpus if gpu.health is not GpuHealth.FAILED]
        state = SourceState.DEGRADED if awake else SourceState.UNAVAILABLE
        reason = "; ".join(reasons)
        by_gpu = not self.nameless
        self._all_failed_because = reason if by_gpu and not awake else None
        return GpuRead(tuple(gpus), driver, state, reason, len(reasons), by_gpu)

    def failed(
        self,
        slots: Sequence[Slot],
        outcomes: Sequence[GpuReading | OtelGpuError],
        driver: DriverFacts | None,
        reason: str,
    ) -> GpuRead:
        """The answer of a pass in which the driver failed: what it gave until then, and nothing more from now on."""
        gpus, _ = self._placed(slots, outcomes)
        self._remember(gpus)
        told = {gpu.identity.uuid: gpu for gpu in gpus if gpu.answered}
        absent = self.absent(reason)
        everybody = tuple(told.get(gpu.identity.uuid, gpu) for gpu in absent.gpus)
        return GpuRead(everybody, driver, SourceState.UNAVAILABLE, reason, absent.errors)

    def absent(self, reason: str) -> GpuRead:
        """The answer while nothing answers."""
        self._take_in_recalled()
        by_gpu = reason == self._all_failed_because
        now_ns = self._clock.monotonic_ns()  # nobody has been found missing: nobody could look
        for known in self._known.values():
            known.listed_ns = now_ns
        gpus = [
            self._without_figures(known.identity, GpuHealth.FAILED, (known.reason if by_gpu else None) or reason)
            for known in self._known.values()
        ]
        return GpuRead(tuple(gpus), None, SourceState.UNAVAILABLE, reason, 1, by_gpu)

    def all_asleep(self, count: int) -> GpuRead:
        """The answer while every GPU sleeps, so many of them, and NVML need not even be initialised."""
        self._take_in_recalled()
        reason = str(Asleep())
        gpus = tuple(self._without_figures(known.identity, GpuHealth.ASLEEP, reason) for known in self._known.values())
        if gpus:
            return GpuRead(gpus)
        # Who has never been seen awake cannot be told of. Nothing has failed: /sys answered, and nobody was woken.
        reason = f"every GPU is {reason}: figures come when one is used"
        return GpuRead(state=SourceState.DEGRADED, reason=reason, asleep=count)

    def _placed(
        self, slots: Sequence[Slot], outcomes: Sequence[GpuReading | OtelGpuError]
    ) -> tuple[list[GpuReading], tuple[Nameless, ...]]:
        """The GPUs in the order of NVML's indices, and those of whom nobody can tell who they are."""
        self._take_in_recalled()
        told = [outcome for outcome in outcomes if isinstance(outcome, GpuReading)]
        if len(told) == len(slots):
            return told, ()
        gpus: list[GpuReading] = []
        nameless: list[Nameless] = []
        identified = {slot.identity.uuid for slot in slots if slot.identity is not None}
        unclaimed = {
            known.identity.index: known.identity for uuid, known in self._known.items() if uuid not in identified
        }
        for slot, outcome in zip(slots, outcomes, strict=True):
            if isinstance(outcome, GpuReading):
                gpus.append(outcome)
                continue
            # One that fails before it says who it is, is probably who stood there before the driver was loaded anew,
            # or this agent started.
            identity = slot.identity or unclaimed.get(slot.index)
            health = GpuHealth.ASLEEP if isinstance(outcome, Asleep) else GpuHealth.FAILED
            if identity is None:
                nameless.append(Nameless(slot.index, health, str(outcome)))
            else:
                gpus.append(self._without_figures(identity, health, str(outcome)))
        return gpus, tuple(nameless)

    def _take_in_recalled(self) -> None:
        if not self._recalled:
            return
        now_ns = self._clock.monotonic_ns()
        for identity in self._recalled:
            self._known.setdefault(identity.uuid, _Known(identity, now_ns, None))
        self._recalled = ()

    def _removed(self, listed: set[str]) -> list[GpuReading]:
        if self._known.keys() <= listed:
            return []
        now_ns = self._clock.monotonic_ns()
        self._known = {
            uuid: known
            for uuid, known in self._known.items()
            if uuid in listed or now_ns - known.listed_ns < _REMEMBERED_NS
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
                self._known[gpu.identity.uuid] = _Known(gpu.identity, now_ns, gpu.reason)
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
