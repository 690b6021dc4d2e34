"""Since when everybody has only gone on being idle: whoever makes something of an answer need not look for more."""

from __future__ import annotations

from typing import NamedTuple

from otel_gpu.attribution.cycle_shown import GpuCycle
from otel_gpu.attribution.ledger import Ledger
from otel_gpu.attribution.order import Order
from otel_gpu.attribution.shown import GpuBooks
from otel_gpu.model import GpuReading, Snapshot


class GpuView(NamedTuple):
    """One GPU in this cycle; ``cycle`` is ``None`` where it did not answer."""

    reading: GpuReading
    cycle: GpuCycle | None
    books: GpuBooks
    energy_source: str


class Stillness:
    """Watches the answers of one ledger, which ``order`` has followed to the cycle at hand.

    What is booked to whom is not looked at: the bookkeeper says of which GPUs nothing but idle time and energy was. The
    rest is mostly the object that it was in the cycle before.
    """

    def __init__(self, ledger: Ledger, order: Order) -> None:
        self._ledger = ledger
        self._order = order
        self._since_ns = 0
        self._grounds: tuple[object, ...] = ()

    def since_ns(self, snapshot: Snapshot, views: tuple[GpuView, ...]) -> int:
        """The first of the cycles since which nothing else has happened up to this one, 0 if something has."""
        grounds = self._of(snapshot, views)
        if grounds is None:
            self._since_ns, self._grounds = 0, ()
        elif grounds != self._grounds:  # so is this cycle, but not by what the one before was
            self._since_ns, self._grounds = snapshot.monotonic_ns, grounds
        return self._since_ns

    def _of(self, snapshot: Snapshot, views: tuple[GpuView, ...]) -> tuple[object, ...] | None:
        """What answers tell beside idle time and energy follows from; ``None`` where something else happened.

        MIG is left out, as is who could use a GPU and does not: of them more would have to be compared.
        """
        if not views or any(grant.possible for grant in snapshot.grants):
            return None
        order, ledger = self._order, self._ledger
        grounds = [order.processes, order.workloads, order.names(), ledger.departures, snapshot.grants]
        for reading, cycle, books, energy_source in views:
            if cycle is None or not books.goes_on or reading.mig is not None:
                return None
            if cycle.division is None or cycle.baseline is None or cycle.compute is None:
                return None
            grounds += (
                reading.identity,
                reading.health,
                cycle.lists_told,
                cycle.memory,
                cycle.hidden,
                cycle.baseline.idle_origin,
                cycle.baseline.held_origin,
                cycle.division.method,
                energy_source,
            )
        return tuple(grounds)
