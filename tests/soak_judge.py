"""Checks of every cycle of a soak, and of its whole length. Only the last cycle is kept."""

from __future__ import annotations

import gc
import math
import os
import statistics
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_gpu.model import START_UNKNOWN, UNIDENTIFIED_WORKLOAD, Report
from tests.state_dirs import counters, fallen

WARM_UP: Final = 0.25
"""The fraction of a soak in which memory may grow: tables fill, caches warm up, the allocator settles."""

MOST_GROWTH: Final = {"blocks": 0.02, "rss_bytes": 0.05}
"""The allowed growth between the halves of the rest, as a ratio, in addition to the standard error."""

MOST_MORE: Final = 1
"""The allowed growth of threads and descriptors between the halves, by their medians."""

_STANDARD_ERRORS: Final = 4.0
_UNIDENTIFIED: Final = f'"{UNIDENTIFIED_WORKLOAD.id}"'
_LONGEST: Final = 400
MOST_WRONG: Final = 20


@dataclass(frozen=True, slots=True)
class Footprint:
    """The process at one moment: Python's blocks of memory, resident set, threads, descriptors."""

    blocks: int
    rss_bytes: int
    threads: int
    descriptors: int

    @classmethod
    def now(cls) -> Footprint:
        """The footprint of this process after a garbage collection."""
        gc.collect()
        resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return cls(
            sys.getallocatedblocks(),
            resident_pages * os.sysconf("SC_PAGE_SIZE"),
            threading.active_count(),
            len(list(Path("/proc/self/fd").iterdir())),
        )


class Audit:
    """Compares the counters of every cycle with those of the previous one, and with the hardware's counters."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.cycles = 0
        self.workloads = self.processes = 0
        self._last: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self._gone_mj: dict[str, int] = {}
        self._last_scrape: dict[str, float] = {}
        self._epoch_ns: int | None = None
        self._silent = False
        self.restarted_series = 0
        """Series that ended and started again with the same labels, at 0 with a later start.

        Without those of processes that /proc never showed: different processes share one name.
        """
        self._starts: dict[tuple[Any, ...], int] = {}

    def complain(self, what: str) -> None:
        """Record a violation, up to a maximum."""
        if len(self.wrong) < MOST_WRONG:
            self.wrong.append(f"cycle {self.cycles}: {what}"[:_LONGEST])

    def check(self, answer: Report, expected_mj: Mapping[str, int]) -> None:
        """Check a cycle: its own sums, that no counter fell, and that no energy is missing since the start."""
        self.cycles += 1
        self._silent = all(gpu.totals is None for gpu in answer.gpus)
        if self._silent:
            return  # without a driver an agent has no counters yet; the last ones remain valid
        if answer.epoch_ns != self._epoch_ns:
            if self._epoch_ns is not None:
                self.complain("the ledger started again")
            self._epoch_ns = answer.epoch_ns
        for gpu in answer.gpus:
            if gpu.energy_error_mj:
                self.complain(f"{gpu.identity.uuid}: {gpu.energy_error_mj} mJ do not add up")
            if gpu.memory is not None and gpu.memory.conservation_error_bytes:
                self.complain(f"{gpu.identity.uuid}: {gpu.memory.conservation_error_bytes} bytes do not add up")
        current = counters(answer)
        for key, before, after in fallen(self._last, current):
            self.complain(f"{key} fell from {before} to {after}")
        for key in self._last.keys() - current.keys():
            if key[0] == "workload":
                self._gone_mj[key[-3]] = self._gone_mj.get(key[-3], 0) + sum(self._last[key][:3])
        new = current.keys() - self._last.keys()
        self.workloads += sum(key[0] == "workload" for key in new)
        self.processes += sum(key[0] == "process" for key in new)
        self.restarted_series += sum(
            self._starts.get(key[:-1], key[-1]) != key[-1] for key in new if not _is_unidentified(key)
        )
        self._last = current
        self._balance(answer, expected_mj)

    def _balance(self, answer: Report, expected_mj: Mapping[str, int]) -> None:
        booked = dict(self._gone_mj)
        for key, sums in self._last.items():
            if key[0] == "workload":
                booked[key[-3]] = booked.get(key[-3], 0) + sum(sums[:3])
        for gpu in answer.gpus:
            uuid, totals = gpu.identity.uuid, gpu.totals
            if totals is None or uuid not in expected_mj:
                continue
            missing_mj = expected_mj[uuid] - booked.get(uuid, 0) - totals.idle_mj - totals.unattributed_mj
            if missing_mj:
                self.complain(f"{uuid}: {missing_mj} mJ are missing since the start")

    def check_scrape(self, text: str) -> None:
        """Check a scrape: no counter except the agent's own fell since the last one."""
        values = {}
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            if "_total" in series and not series.startswith(("#", "otel_gpu_")) and _UNIDENTIFIED not in series:
                values[series] = float(value)
        if self._silent:
            if values:
                self.complain("a scrape has counters of a ledger that is not resumed yet")
            return
        if not values:
            self.complain("a scrape has no counters")
        for series in values.keys() & self._last_scrape.keys():
            if values[series] < self._last_scrape[series]:
                self.complain(f"fell from {self._last_scrape[series]} to {values[series]}: {series}")
        self._last_scrape = values
        self._starts = {key[:-1]: key[-1] for key in self._last}


def _is_unidentified(key: tuple[Any, ...]) -> bool:
    return key[1:3] == UNIDENTIFIED_WORKLOAD.key or (key[0] == "process" and key[2] == START_UNKNOWN)


# ---------------------------------------------------------------------------- flatness


def not_flat(footprints: Sequence[Footprint]) -> list[str]:
    """The figures that grew, by the medians of the two halves after the warm-up."""
    first, second = _halves(footprints)
    if min(len(first), len(second)) < 2:
        return ["too short to tell whether memory is flat"]
    wrong = []
    for name in ("blocks", "rss_bytes", "threads", "descriptors"):
        halves = [[float(getattr(each, name)) for each in half] for half in (first, second)]
        before, after = map(statistics.median, halves)
        share = MOST_GROWTH.get(name)
        most = MOST_MORE if share is None else share * before + _STANDARD_ERRORS * _standard_error(halves)
        if after - before > most:
            wrong.append(f"{name} grow: {before:.0f} in the first half, {after:.0f} in the second, {most:.0f} allowed")
    return wrong


def _standard_error(halves: Sequence[Sequence[float]]) -> float:
    """The standard error of the difference of two medians: 1.25 times a mean's, for normally distributed values."""
    return 1.25 * math.sqrt(sum(statistics.variance(half) / len(half) for half in halves))


def _halves(footprints: Sequence[Footprint]) -> tuple[Sequence[Footprint], Sequence[Footprint]]:
    warm = footprints[int(len(footprints) * WARM_UP) :]
    return warm[: len(warm) // 2], warm[len(warm) // 2 :]


def summary(footprints: Sequence[Footprint]) -> dict[str, dict[str, float]]:
    """The medians of both halves, and the maximum."""
    first, second = _halves(footprints)
    figures = {}
    for name in ("blocks", "rss_bytes", "threads", "descriptors"):
        halves = [[getattr(each, name) for each in half] for half in (first, second)]
        medians = [statistics.median(half) if half else 0.0 for half in halves]
        figures[name] = {
            "first_half": medians[0],
            "second_half": medians[1],
            "most": max(map(max, filter(None, halves))),
        }
    return figures
