"""The formulas of other exporters, written from their documentation, polled on the same GPU as the agent.

**Energy.** All of them divide by a figure of work per process, taken from the driver's ring of samples. Each sample
names one process (SM samples are winner-take-all). The formulas differ in how they read the ring:

* ``last sample``: the newest sample decides (OpenLIT: one sample wins);
* ``last of each``: the newest sample of each process (what a dictionary filled in a loop over the samples keeps);
* ``maximum``: the largest sample of each process in the buffer (Kepler);
* ``mean rows``: the driver's own mean over the samples after the newest one seen before, where it gives that;
* ``equal``: no figure, equal shares among the listed processes.

Each is scored twice against the same truth, that of the policy ``resident`` (``score.resident_energy_mj``): *as it
is*, power x Δt x share; and *with the context power of the agent*, where it uses the agent's energy counter, the
agent's baseline of that cycle and equal parts of it among residents, and divides only the rest by its share. ``mean
rows`` is not scored that way: it would be the agent's own model ``sm``. The table shows the better of the two.

**Busy time.** The same figures x Δt; ``equal`` divides the device's utilisation.

**Memory.** What is used and not listed, equally among the processes that have the device open and are not listed
(``equal``), or with three times the weight for names that look like AI (``names``; as described, by parts of words).
Unlike in the originals, memory that the driver reserves does not count as used.

**Idle.** No work shown in ``n`` polls in a row: one (gpu-idle-exporter, for a process seen before) or two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from otel_gpu.sources.sim.host import SimulatedHost


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll shows of the world's only GPU; processes by workload id, of which each has one.

    ``samples`` are (workload, SM percent), oldest first, and ``rows`` their mean per workload, both after the newest
    sample of the previous poll. ``held_bytes`` is ``None`` for a workload listed without a figure. ``working`` are the
    workloads with a row above 0 in the reading that the agent gets too.
    """

    window_s: float
    energy_mj: int
    delta_mj: int
    power_w: float
    utilization: float
    samples: tuple[tuple[str, int], ...]
    rows: Mapping[str, int]
    held_bytes: Mapping[str, int | None]
    used_bytes: int
    candidates: Mapping[str, str]
    working: frozenset[str]


class Watcher:
    """Polls a host as a separate exporter does."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._gpus = host.gpu_source()
        self._processes = host.process_source()
        self._newest_us: int | None = None
        self._before: tuple[int, int] | None = None

    def poll(self) -> Poll:
        """One poll."""
        reading = self._gpus.read().gpus[0]
        device = self._host.devices[0]
        if reading.energy_mj is None or reading.power_w is None or reading.memory is None:
            raise ValueError("the peers' formulas need a GPU with energy, power and memory")
        listed = {entry.pid: entry.memory_bytes for entry in reading.processes or ()}
        facts = self._processes.read(listed.keys()).processes
        workloads = {pid: fact.workload.id for pid, fact in facts.items()}
        since_us = device.now_us if self._newest_us is None else self._newest_us
        seen = [sample for sample in device.ring if sample.taken_us > since_us and sample.credits]
        self._newest_us = max((sample.taken_us for sample in seen), default=since_us)
        at_ns, energy_mj = self._before or (reading.taken_at_ns, reading.energy_mj)
        self._before = reading.taken_at_ns, reading.energy_mj
        rows = reading.utilization.rows if reading.utilization is not None else ()
        return Poll(
            window_s=(reading.taken_at_ns - at_ns) / 1e9,
            energy_mj=reading.energy_mj,
            delta_mj=reading.energy_mj - energy_mj,
            power_w=reading.power_w,
            utilization=reading.gpu_ratio or 0.0,
            samples=tuple((workloads[pid], use.sm_percent) for one in seen for pid, use in one.credits),
            rows={workloads[row.pid]: row.sm_percent for row in device.ring.rows(since_us)},
            held_bytes={workloads[pid]: held for pid, held in listed.items()},
            used_bytes=reading.memory.used_bytes,
            candidates={
                fact.workload.id: fact.name
                for pid, fact in facts.items()
                if pid not in listed and fact.uvm_open and reading.identity.minor in fact.gpu_minors_open
            },
            working=frozenset(
                workloads[row.pid]
                for row in rows
                if row.sm_percent or row.memory_percent or row.encoder_percent or row.decoder_percent
            ),
        )


# ---------------------------------------------------------------------------- energy and busy time

LAST, LAST_OF_EACH, MAXIMUM, MEAN_ROWS, EQUAL = "last sample", "last of each", "maximum", "mean rows", "equal"
STANDING: Final = " + standing"
"""Suffix of a formula's name if it uses the context power of the agent."""


def _last(poll: Poll) -> dict[str, float]:
    return {workload: float(sm) for workload, sm in poll.samples[-1:]}


def _last_of_each(poll: Poll) -> dict[str, float]:
    return {workload: float(sm) for workload, sm in poll.samples}


def _maximum(poll: Poll) -> dict[str, float]:
    largest: dict[str, float] = {}
    for workload, sm in poll.samples:
        largest[workload] = max(largest.get(workload, 0.0), float(sm))
    return largest


def _mean_rows(poll: Poll) -> dict[str, float]:
    return {workload: float(sm) for workload, sm in poll.rows.items()}


def _equal(poll: Poll) -> dict[str, float]:
    return {workload: 100 * poll.utilization / len(poll.held_bytes) for workload in poll.held_bytes}


_FIGURES: Final[Mapping[str, Callable[[Poll], dict[str, float]]]] = {
    LAST: _last,
    LAST_OF_EACH: _last_of_each,
    MAXIMUM: _maximum,
    MEAN_ROWS: _mean_rows,
    EQUAL: _equal,
}
"""SM percent per workload, as each formula sees it."""

ENERGY_FORMULAS: Final = (*_FIGURES, *(name + STANDING for name in _FIGURES if name != MEAN_ROWS))
BUSY_FORMULAS: Final = tuple(_FIGURES)


class PeerMeters:
    """Energy in mJ and busy time in s, by formula and workload, over the polls of a world."""

    def __init__(self) -> None:
        self.energy_mj: dict[str, dict[str, float]] = {name: {} for name in ENERGY_FORMULAS}
        self.busy_s: dict[str, dict[str, float]] = {name: {} for name in BUSY_FORMULAS}

    def add(self, poll: Poll, standing_w: float) -> None:
        """Book one poll; ``standing_w`` is the agent's baseline with contexts and no work."""
        for name, figure in _FIGURES.items():
            percents = figure(poll)
            _book(self.busy_s[name], {workload: percent / 100 for workload, percent in percents.items()}, poll.window_s)
            # Equal shares do not depend on work; the other formulas attribute nothing while no process works.
            weights = dict.fromkeys(poll.held_bytes, 1.0) if name == EQUAL else percents
            shares = _shares(weights)
            _book(self.energy_mj[name], shares, poll.power_w * poll.window_s * 1e3)
            if name != MEAN_ROWS:
                standing_mj = min(float(poll.delta_mj), standing_w * poll.window_s * 1e3)
                if not any(percents.values()):
                    standing_mj = poll.delta_mj
                residents = _shares(dict.fromkeys(poll.held_bytes, 1.0))
                _book(self.energy_mj[name + STANDING], residents, standing_mj)
                _book(self.energy_mj[name + STANDING], shares, poll.delta_mj - standing_mj)


def _shares(weights: Mapping[str, float]) -> dict[str, float]:
    whole = sum(weights.values())
    return {workload: weight / whole for workload, weight in weights.items()} if whole > 0 else {}


def _book(sums: dict[str, float], shares: Mapping[str, float], amount: float) -> None:
    for workload, share in shares.items():
        sums[workload] = sums.get(workload, 0.0) + share * amount


# ---------------------------------------------------------------------------- memory

NAMES: Final = "names"
MEMORY_FORMULAS: Final = (EQUAL, NAMES)
_PARTS_OF_AI: Final = ("ai", "ml", "llm", "gpt", "model", "train", "infer", "torch", "cuda", "gpu")
_AI_WEIGHT: Final = 3.0


def looks_like_ai(name: str) -> bool:
    """Whether a name has a part that is typical of AI workloads; "mail" and "html" match too."""
    return any(part in name.lower() for part in _PARTS_OF_AI)


def hidden_memory(poll: Poll) -> dict[str, dict[str, int]]:
    """Bytes by formula and workload: what is used and not listed, divided among the candidates."""
    unknown = max(0, poll.used_bytes - sum(held for held in poll.held_bytes.values() if held is not None))
    equal = dict.fromkeys(poll.candidates, 1.0)
    names = {workload: _AI_WEIGHT if looks_like_ai(name) else 1.0 for workload, name in poll.candidates.items()}
    return {
        formula: {workload: round(unknown * share) for workload, share in _shares(weights).items()}
        for formula, weights in ((EQUAL, equal), (NAMES, names))
    }


# ---------------------------------------------------------------------------- idleness

ONE_ZERO, TWO_ZEROS = "one zero poll", "two zero polls"
IDLE_FORMULAS: Final[Mapping[str, int]] = {ONE_ZERO: 1, TWO_ZEROS: 2}


class ZeroPolls:
    """A workload is idle after this many polls in a row without work."""

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._zeros: dict[str, int] = {}

    def idle(self, poll: Poll) -> frozenset[str]:
        """The workloads that are idle after this poll."""
        self._zeros = {
            workload: 0 if workload in poll.working else self._zeros.get(workload, 0) + 1
            for workload in poll.held_bytes
        }
        return frozenset(workload for workload, zeros in self._zeros.items() if zeros >= self._needed)
