"""The figures of a result, and the targets they are held to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.cost.run import Result, Turns
from bench.cost.tools import OURS, PEER


@dataclass(frozen=True, slots=True)
class Figures:
    """The cost of a tool on a world.

    ``cpu_ms`` is per cycle, with its scrape and its part of the pushes. ``push_cpu_ms`` and ``pushed_bytes`` are of one
    push, ``None`` where there was none. Memory and threads are those at the end.
    """

    tool: str
    world: str
    gpus: int
    processes: int
    containers: int
    cycles: float
    pushes: int
    driver_calls_per_gpu: float
    cpu_ms: float
    push_cpu_ms: float | None
    scrape_ms: float
    slowest_scrape_ms: float
    rss_mb: float
    threads: int
    start_s: float
    series: int
    scraped_bytes: float
    pushed_bytes: float | None


@dataclass(frozen=True, slots=True)
class Target:
    """A figure and its limit; ``value`` is ``None`` where it was not measured."""

    what: str
    limit: float
    value: float | None

    @property
    def reached(self) -> bool | None:
        """Whether the value is within the limit; ``None`` where it was not measured."""
        return None if self.value is None else self.value <= self.limit


def figures(turns: Turns) -> Figures:
    """All turns of a tool together."""
    world = turns.world
    cycles, pushes = turns.total(lambda mark: mark.cycles), round(turns.total(lambda mark: mark.pushes))
    push_cpu_s = _push_cpu_s(turns)
    return Figures(
        tool=turns.tool,
        world=world.name,
        gpus=world.gpus,
        processes=world.processes,
        containers=world.containers,
        cycles=round(cycles, 1),
        pushes=pushes,
        driver_calls_per_gpu=round(turns.total(lambda mark: mark.device_calls) / cycles / world.gpus, 2),
        cpu_ms=round(turns.total(lambda mark: mark.cpu_s) / cycles * 1e3, 2),
        push_cpu_ms=None if push_cpu_s is None else round(push_cpu_s * 1e3, 1),
        scrape_ms=round(statistics.median(turns.scrape_s) * 1e3, 2),
        slowest_scrape_ms=round(max(turns.scrape_s) * 1e3, 1),
        rss_mb=round(turns.footprint.rss_bytes / 1e6, 1),
        threads=turns.footprint.threads,
        start_s=round(turns.start_s, 2),
        series=turns.series,
        scraped_bytes=round(statistics.fmean(turns.scrape_bytes)),
        pushed_bytes=round(turns.total(lambda mark: mark.pushed_bytes) / pushes) if pushes else None,
    )


def _push_cpu_s(turns: Turns) -> float | None:
    """The CPU time of one push (s): the mean of seconds with a push minus the mean of the others.

    ``None`` where no push was seen, or nothing but pushes.
    """
    pushes = turns.total(lambda mark: mark.pushes)
    quiet = [cpu_s for cpu_s, pushed in turns.seconds() if not pushed]
    pushing = [cpu_s for cpu_s, pushed in turns.seconds() if pushed]
    if not pushes or not quiet:
        return None
    return max(0.0, sum(pushing) - len(pushing) * statistics.fmean(quiet)) / pushes


def targets(found: Sequence[Figures], pass_s: tuple[float, float] | None) -> tuple[Target, ...]:
    """Limits of the agent's cost. Where possible a figure is compared with another of the same run."""
    by = {(each.tool, each.world): each for each in found}

    def ratio(figure: Callable[[Figures], float], of: tuple[str, str], to: tuple[str, str]) -> float | None:
        return figure(by[of]) / figure(by[to]) if of in by and to in by else None

    def own(figure: Callable[[Figures], float], world: str) -> float | None:
        return figure(by[OURS, world]) if (OURS, world) in by else None

    return (
        Target("driver calls per GPU and cycle, M", 10, own(lambda f: f.driver_calls_per_gpu, "M")),
        Target(f"CPU per cycle, M, of {PEER}'s", 1 / 3, ratio(lambda f: f.cpu_ms, (OURS, "M"), (PEER, "M"))),
        Target("reading M at 5 ms a call, of one GPU's", 1.3, None if pass_s is None else pass_s[1] / pass_s[0]),
        Target("resident memory, M, MB", 72, own(lambda f: f.rss_mb, "M")),
        Target("CPU per cycle, L, of M's", 20, ratio(lambda f: f.cpu_ms, (OURS, "L"), (OURS, "M"))),
        # Not on L: there the stub driver needs most of the time, in any process, to load the world.
        Target("start to first metrics, M, s", 1.5, own(lambda f: f.start_s, "M")),
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


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "world": lambda each: each["world"],
    "tool": lambda each: each["tool"],
    "driver calls per GPU": lambda each: f"{each['driver_calls_per_gpu']:.1f}",
    "CPU ms": lambda each: f"{each['cpu_ms']:.1f}",
    "CPU ms of a push": lambda each: _or_empty(each["push_cpu_ms"], "{:.0f}"),
    "scrape ms": lambda each: f"{each['scrape_ms']:.1f}",
    "slowest scrape ms": lambda each: _or_empty(each["slowest_scrape_ms"], "{:.0f}"),
    "RSS MB": lambda each: f"{each['rss_mb']:.0f}",
    "threads": lambda each: f"{each['threads']}",
    "start s": lambda each: f"{each['start_s']:.2f}",
    "series": lambda each: f"{each['series']:,}",
    "scraped kB": lambda each: f"{each['scraped_bytes'] / 1e3:,.0f}",
    "pushed kB": lambda each: _or_empty(each["pushed_bytes"] and each["pushed_bytes"] / 1e3, "{:,.0f}"),
}


def _or_empty(value: float | None, form: str) -> str:
    return form.format(value) if value is not None else ""


def as_markdown(document: dict[str, Any]) -> Iterator[str]:
    """The tables of a document: the cost of each tool, and the targets."""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield f"|---|---|{'--:|' * (len(_COLUMNS) - 2)}"
    for each in document["figures"]:
        yield f"| {' | '.join(cell(each) for cell in _COLUMNS.values())} |"
    yield ""
    yield "| target | at most | found | |"
    yield "|---|--:|--:|---|"
    for target in document["targets"]:
        value = "not measured" if target["value"] is None else f"{target['value']:.2f}"
        verdict = {True: "reached", False: "MISSED", None: "unknown"}[target["reached"]]
        yield f"| {target['what']} | {target['limit']:.3g} | {value} | {verdict} |"
