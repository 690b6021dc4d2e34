"""What must hold in every cycle of a soak, and over all of it. It keeps no more than the last cycle itself."""

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
"""The part of a soak in which memory may still grow: tables fill, caches warm up, the allocator settles."""

MOST_GROWTH: Final = {"blocks": 0.02, "rss_bytes": 0.05}
"""What may be between the halves of the rest, as a part of what there is, beside what chance makes of it."""

MOST_MORE: Final = 1
"""How many more threads and descriptors there may be in the second half, by their medians."""

_STANDARD_ERRORS: Final = 4.0
_NOBODY: Final = f'"{UNIDENTIFIED_WORKLOAD.id}"'
_LONGEST: Final = 400
MOST_WRONG: Final = 20


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the process takes at one moment: Python's blocks of memory, its resident set, threads, descriptors."""

    blocks: int
    rss_bytes: int
    threads: int
    descriptors: int

    @classmethod
    def now(cls) -> Footprint:
        """Of this process, with what nobody refers to any more cleared away."""
        gc.collect()
        resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return cls(
            sys.getallocatedblocks(),
            resident_pages * os.sysconf("SC_PAGE_SIZE"),
            threading.active_count(),
            len(list(Path("/proc/self/fd").iterdir())),
        )


class Books:
    """Every cycle's counters against the last ones', and against what the hardware counted."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.cycles = 0
        self.workloads = self.processes = 0
        self._told: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self._gone_mj: dict[str, int] = {}
        self._scraped: dict[str, float] = {}
        self._epoch_ns: int | None = None
        self._silent = False
        self.begun_again = 0
        """Series that had ended and began again under the same labels, at 0 with a start of their own.

        Not those of processes that /proc never showed: they are others each time, under one name.
        """
        self._starts: dict[tuple[Any, ...], int] = {}

    def complain(self, what: str) -> None:
        """Note what is wrong, if not too much is already."""
        if len(self.wrong) < MOST_WRONG:
            self.wrong.append(f"cycle {self.cycles}: {what}"[:_LONGEST])

    def hear(self, answer: Report, expected_mj: Mapping[str, int]) -> None:
        """Judge a cycle: what it says of itself, that nothing fell, and that nothing is missing since the beginning."""
        self.cycles += 1
        self._silent = all(gpu.totals is None for gpu in answer.gpus)
        if self._silent:
            return  # an agent that has found no driver yet counts nothing: what was told before stands
        if answer.epoch_ns != self._epoch_ns:
            if self._epoch_ns is not None:
                self.complain("the books began anew")
            self._epoch_ns = answer.epoch_ns
        for gpu in answer.gpus:
            if gpu.energy_error_mj:
                self.complain(f"{gpu.identity.uuid}: {gpu.energy_error_mj} mJ do not add up")
            if gpu.memory is not None and gpu.memory.conservation_error_bytes:
                self.complain(f"{gpu.identity.uuid}: {gpu.memory.conservation_error_bytes} bytes do not add up")
        told = counters(answer)
        for key, before, after in fallen(self._told, told):
            self.complain(f"{key} fell from {before} to {after}")
        for key in self._told.keys() - told.keys():
            if key[0] == "workload":
                self._gone_mj[key[-3]] = self._gone_mj.get(key[-3], 0) + sum(self._told[key][:3])
        new = told.keys() - self._told.keys()
        self.workloads += sum(key[0] == "workload" for key in new)
        self.processes += sum(key[0] == "process" for key in new)
        self.begun_again += sum(self._starts.get(key[:-1], key[-1]) != key[-1] for key in new if not _is_nobodys(key))
        self._told = told
        self._balance(answer, expected_mj)

    def _balance(self, answer: Report, expected_mj: Mapping[str, int]) -> None:
        booked = dict(self._gone_mj)
        for key, sums in self._told.items():
            if key[0] == "workload":
                booked[key[-3]] = booked.get(key[-3], 0) + sum(sums[:3])
        for gpu in answer.gpus:
            uuid, totals = gpu.identity.uuid, gpu.totals
            if totals is None or uuid not in expected_mj:
                continue
            missing_mj = expected_mj[uuid] - booked.get(uuid, 0) - totals.idle_mj - totals.unattributed_mj
            if missing_mj:
                self.complain(f"{uuid}: {missing_mj} mJ are missing since the beginning")

    def scraped(self, text: str) -> None:
        """Judge a scrape: of what the agent says of others, nothing fell since the last one."""
        values = {}
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            if "_total" in series and not series.startswith(("#", "otel_gpu_")) and _NOBODY not in series:
                values[series] = float(value)
        if self._silent:
            if values:
                self.complain("a scrape has counters of books that are not taken up yet")
            return
        if not values:
            self.complain("a scrape has no counters")
        for series in values.keys() & self._scraped.keys():
            if values[series] < self._scraped[series]:
                self.complain(f"fell from {self._scraped[series]} to {values[series]}: {series}")
        self._scraped = values
        self._starts = {key[:-1]: key[-1] for key in self._told}


def _is_nobodys(key: tuple[Any, ...]) -> bool:
    return key[1:3] == UNIDENTIFIED_WORKLOAD.key or (key[0] == "process" and key[2] == START_UNKNOWN)


# ---------------------------------------------------------------------------- flatness


def not_flat(footprints: Sequence[Footprint]) -> list[str]:
    """What grew, by the medians of the two halves after the warm-up."""
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
    """Of the difference of two medians: a median's is 1.25 of a mean's, for values that vary normally."""
    return 1.25 * math.sqrt(sum(statistics.variance(half) / len(half) for half in halves))


def _halves(footprints: Sequence[Footprint]) -> tuple[Sequence[Footprint], Sequence[Footprint]]:
    warm = footprints[int(len(footprints) * WARM_UP) :]
    return warm[: len(warm) // 2], warm[len(warm) // 2 :]


def summary(footprints: Sequence[Footprint]) -> dict[str, dict[str, float]]:
    """The medians of both halves, and the most there was."""
    first, second = _halves(footprints)
    told = {}
    for name in ("blocks", "rss_bytes", "threads", "descriptors"):
        halves = [[getattr(each, name) for each in half] for half in (first, second)]
        medians = [statistics.median(half) if half else 0.0 for half in halves]
        told[name] = {"first_half": medians[0], "second_half": medians[1], "most": max(map(max, filter(None, halves)))}
    return told
