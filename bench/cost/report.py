"""A result as figures, and what they may be at most."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.cost.run import IDLE, Result, Turns
from bench.cost.tools import OURS, PEER


@dataclass(frozen=True, slots=True)
class Figures:
    """What a tool costs on a world: by cycle what is used up, else as it was at the end."""

    tool: str
    world: str
    gpus: int
    processes: int
    containers: int
    cycles: float
    driver_calls_per_gpu: float
    cpu_ms: float
    scrape_ms: float
    rss_mb: float
    threads: int
    start_s: float
    series: int
    scraped_bytes: float
    pushed_bytes: float


@dataclass(frozen=True, slots=True)
class Target:
    """A figure and what it may be at most; ``None`` where it was not measured."""

    what: str
    limit: float
    value: float | None

    @property
    def reached(self) -> bool | None:
        """Whether it is no more than that; ``None`` where it was not measured, which is neither."""
        return None if self.value is None else self.value <= self.limit


def figures(turns: Turns) -> Figures:
    """All turns of a tool together."""
    world = turns.world
    cycles = turns.total(lambda mark: mark.cycles)
    return Figures(
        tool=turns.tool,
        world=world.name,
        gpus=world.gpus,
        processes=world.processes,
        containers=world.containers,
        cycles=round(cycles, 1),
        driver_calls_per_gpu=round(turns.total(lambda mark: mark.device_calls) / cycles / world.gpus, 2),
        cpu_ms=round(turns.total(lambda mark: mark.cpu_s) / cycles * 1e3, 2),
        scrape_ms=round(statistics.median(turns.scrape_s) * 1e3, 2),
        rss_mb=round(turns.footprint.rss_bytes / 1e6, 1),
        threads=turns.footprint.threads,
        start_s=round(turns.start_s, 2),
        series=turns.series,
        scraped_bytes=round(statistics.fmean(turns.scrape_bytes)),
        pushed_bytes=round(turns.total(lambda mark: mark.pushed_bytes) / cycles),
    )


def targets(found: Sequence[Figures], pass_s: tuple[float, float] | None) -> tuple[Target, ...]:
    """What the agent may cost at most. Seconds are compared with others of the same run where they can be."""
    by = {(each.tool, each.world): each for each in found}

    def ratio(figure: Callable[[Figures], float], of: tuple[str, str], to: tuple[str, str]) -> float | None:
        return figure(by[of]) / figure(by[to]) if of in by and to in by else None

    def own(figure: Callable[[Figures], float], world: str) -> float | None:
        return figure(by[OURS, world]) if (OURS, world) in by else None

    return (
        Target("driver calls per GPU and cycle, M", 10, own(lambda f: f.driver_calls_per_gpu, "M")),
        Target(f"CPU per cycle, M, of {PEER}'s", 1 / 3, ratio(lambda f: f.cpu_ms, (OURS, "M"), (PEER, "M"))),
        Target("reading M at 5 ms a call, of one GPU's", 1.3, None if pass_s is None else pass_s[1] / pass_s[0]),
        Target("resident memory, M, MB", 64, own(lambda f: f.rss_mb, "M")),
        Target("CPU per cycle, L, of M's", 20, ratio(lambda f: f.cpu_ms, (OURS, "L"), (OURS, "M"))),
        # Not of L: there it is the stub that takes its time, for whoever loads it, to read the world.
        Target("start to first metrics, M, s", 1.5, own(lambda f: f.start_s, "M")),
        Target("CPU where nothing changes, of a busy M's", 0.5, ratio(lambda f: f.cpu_ms, (IDLE, "M"), (OURS, "M"))),
    )


def as_document(result: Result, about: dict[str, str]) -> dict[str, Any]:
    """Everything, for programs."""
    found = [figures(turns) for turns in result.turns]
    return {
        "about": about,
        "options": asdict(result.options),
        "figures": [asdict(each) for each in found],
        "pass_s": result.pass_s,
        "targets": [asdict(target) | {"reached": target.reached} for target in targets(found, result.pass_s)],
    }


def as_markdown(document: dict[str, Any]) -> Iterator[str]:
    """The tables of a document: what each tool costs, and the targets."""
    columns = ["world", "tool", "driver calls per GPU", "CPU ms", "scrape ms", "RSS MB", "threads", "start s", "series"]
    columns += ["scraped kB", "pushed kB"]
    yield f"| {' | '.join(columns)} |"
    yield f"|---|---|{'--:|' * (len(columns) - 2)}"
    for each in document["figures"]:
        yield (
            f"| {each['world']} | {each['tool']} | {each['driver_calls_per_gpu']:.1f} | {each['cpu_ms']:.1f} "
            f"| {each['scrape_ms']:.1f} | {each['rss_mb']:.0f} | {each['threads']} | {each['start_s']:.2f} "
            f"| {each['series']:,} | {each['scraped_bytes'] / 1e3:,.0f} | {each['pushed_bytes'] / 1e3:,.0f} |"
        )
    yield ""
    yield "| target | at most | found | |"
    yield "|---|--:|--:|---|"
    for target in document["targets"]:
        value = "not measured" if target["value"] is None else f"{target['value']:.2f}"
        verdict = {True: "reached", False: "MISSED", None: "not known"}[target["reached"]]
        yield f"| {target['what']} | {target['limit']:.3g} | {value} | {verdict} |"
