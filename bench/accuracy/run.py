"""Playing many worlds on all cores."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final, TextIO

from bench.accuracy.energy_worlds import ENERGY
from bench.accuracy.idle_worlds import IDLE
from bench.accuracy.memory_worlds import MEMORY
from bench.accuracy.trials import Outcome, play
from bench.accuracy.worlds import Family

FAMILIES: Final = {family.name: family for family in (*ENERGY, *MEMORY, *IDLE)}

Job = tuple[str, int]
"""A family's name and a seed."""


def plan(families: Sequence[Family], seeds: Sequence[int], *, count: int | None = None, divide: int = 1) -> list[Job]:
    """Which worlds to play: of each family as many seeds as it wants (divided, at least 2), or ``count``."""
    jobs: list[Job] = []
    for family in families:
        wanted = count if count is not None else max(2, family.seeds // divide)
        jobs.extend((family.name, seed) for seed in seeds[:wanted])
    return jobs


def _play(job: Job) -> Outcome:
    name, seed = job
    return play(FAMILIES[name], seed)


def play_all(jobs: Sequence[Job], workers: int, progress: TextIO = sys.stderr) -> list[Outcome]:
    """Play them, on this many cores; writes progress."""
    return list(_with_progress(_outcomes(jobs, workers), len(jobs), progress))


def _outcomes(jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    if workers <= 1:
        yield from map(_play, jobs)
        return
    # Spawned, not forked: the caller may have threads.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(_play, job) for job in jobs]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _with_progress(outcomes: Iterator[Outcome], total: int, progress: TextIO) -> Iterator[Outcome]:
    started_s = time.monotonic()
    step = max(1, total // (100 if progress.isatty() else 10))
    end = "\r" if progress.isatty() else "\n"
    progress.write(f"{total} worlds to play …{end}")  # the first results take seconds because processes start
    progress.flush()
    for number, outcome in enumerate(outcomes, start=1):
        yield outcome
        if number % step == 0 or number == total:
            last = "\n" if number == total else end
            progress.write(f"{number}/{total} worlds, {time.monotonic() - started_s:.0f} s{last}")
            progress.flush()
