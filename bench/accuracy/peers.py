"""The formulas in use today, written from their description, on the same GPU at the same times as the agent.

**Energy.** All of them divide by a figure of work per process; they differ in which one they take from the driver's
ring of samples, each of which names one process (facts: SM samples are winner-take-all):

* ``last sample``: the newest sample decides (OpenLIT: one sample wins);
* ``last of each``: the newest sample of each process (what a dictionary filled in a loop over the samples keeps);
* ``maximum``: the largest sample of each process in the buffer (Kepler);
* ``mean rows``: the driver's own mean over the samples after the newest one seen before, where it gives that;
* ``equal``: no figure, equal shares among whom the driver lists.

Each is scored twice against the same truth, that of the policy ``resident`` (``score.resident_energy_mj``): *as it
is*, power x Δt x share; and *with our standing power*, where it gets everything else the agent has (the energy
counter, the baseline the agent found in that cycle, equal parts of it among residents) and only the rest is divided by
its share. ``mean rows`` is not scored that way: it would be the agent's own model ``sm``. The table shows the better
of the two.

**Busy time.** The same figures x Δt; ``equal`` divides the device's utilisation.

**Memory.** What is used and not listed, equally among the processes that have the device open and are not listed
(``equal``), or with three times the weight for names that look like AI (``names``; as described, by parts of words).
They are spared their habit of counting what the driver reserves as used.

**Idle.** No work shown in ``n`` polls in a row: one (gpu-idle-exporter, for a process seen before) or two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from otel_gpu.sources.sim.host import SimulatedHost


@dataclass(frozen=True, slots=True)
class Look:
    """What one poll shows of the world's only GPU; processes by workload id, of which each has one.

    ``samples`` are (workload, SM percent), oldest first, and ``rows`` their mean per workload, both after the newest
    sample of the poll before. ``held_bytes`` is ``None`` for whoever is listed without a figure. ``working`` is who
    has any row above 0 in the reading the agent sees too.
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
    """Looks at a host whenever asked, as an exporter of its own would."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._gpus = host.gpu_source()
        self._processes = host.process_source()
        self._newest_us: int | None = None
        self._before: tuple[int, int] | None = None

    def look(self) -> Look:
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
        return Look(
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
"""Ends the name of a formula that was given our standing power."""


def _last(look: Look) -> dict[str, float]:
    return {who: float(sm) for who, sm in look.samples[-1:]}


def _last_of_each(look: Look) -> dict[str, float]:
    return {who: float(sm) for who, sm in look.samples}


def _maximum(look: Look) -> dict[str, float]:
    largest: dict[str, float] = {}
    for who, sm in look.samples:
        largest[who] = max(largest.get(who, 0.0), float(sm))
    return largest


def _mean_rows(look: Look) -> dict[str, float]:
    return {who: float(sm) for who, sm in look.rows.items()}


def _equal(look: Look) -> dict[str, float]:
    return {who: 100 * look.utilization / len(look.held_bytes) for who in look.held_bytes}


_FIGURES: Final[Mapping[str, Callable[[Look], dict[str, float]]]] = {
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

    def add(self, look: Look, standing_w: float) -> None:
        """Book one poll; ``standing_w`` is the agent's baseline with contexts and no work."""
        for name, figure in _FIGURES.items():
            percents = figure(look)
            _book(self.busy_s[name], {who: percent / 100 for who, percent in percents.items()}, look.window_s)
            # Equal shares need nobody's work; the others bill nobody while nobody works.
            weights = dict.fromkeys(look.held_bytes, 1.0) if name == EQUAL else percents
            shares = _shares(weights)
            _book(self.energy_mj[name], shares, look.power_w * look.window_s * 1e3)
            if name != MEAN_ROWS:
                standing_mj = min(float(look.delta_mj), standing_w * look.window_s * 1e3)
                if not any(percents.values()):
                    standing_mj = look.delta_mj
                residents = _shares(dict.fromkeys(look.held_bytes, 1.0))
                _book(self.energy_mj[name + STANDING], residents, standing_mj)
                _book(self.energy_mj[name + STANDING], shares, look.delta_mj - standing_mj)


def _shares(weights: Mapping[str, float]) -> dict[str, float]:
    whole = sum(weights.values())
    return {who: weight / whole for who, weight in weights.items()} if whole > 0 else {}


def _book(sums: dict[str, float], shares: Mapping[str, float], amount: float) -> None:
    for who, share in shares.items():
        sums[who] = sums.get(who, 0.0) + share * amount


# ---------------------------------------------------------------------------- memory

NAMES: Final = "names"
MEMORY_FORMULAS: Final = (EQUAL, NAMES)
_PARTS_OF_AI: Final = ("ai", "ml", "llm", "gpt", "model", "train", "infer", "torch", "cuda", "gpu")
_AI_WEIGHT: Final = 3.0


def looks_like_ai(name: str) -> bool:
    """Whether a name has a part that names of AI workloads have: so have "mail" and "html"."""
    return any(part in name.lower() for part in _PARTS_OF_AI)


def hidden_memory(look: Look) -> dict[str, dict[str, int]]:
    """Bytes by formula and workload: what is used and not listed, divided among the candidates."""
    unknown = max(0, look.used_bytes - sum(held for held in look.held_bytes.values() if held is not None))
    equal = dict.fromkeys(look.candidates, 1.0)
    names = {who: _AI_WEIGHT if looks_like_ai(name) else 1.0 for who, name in look.candidates.items()}
    return {
        formula: {who: round(unknown * share) for who, share in _shares(weights).items()}
        for formula, weights in ((EQUAL, equal), (NAMES, names))
    }


# ---------------------------------------------------------------------------- idleness

ONE_ZERO, TWO_ZEROS = "one zero poll", "two zero polls"
IDLE_FORMULAS: Final[Mapping[str, int]] = {ONE_ZERO: 1, TWO_ZEROS: 2}


class ZeroPolls:
    """Calls idle whoever showed no work in this many polls in a row."""

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._zeros: dict[str, int] = {}

    def idle(self, look: Look) -> frozenset[str]:
        """Who is idle after this poll."""
        self._zeros = {who: 0 if who in look.working else self._zeros.get(who, 0) + 1 for who in look.held_bytes}
        return frozenset(who for who, zeros in self._zeros.items() if zeros >= self._needed)
