"""Colours in the terminal: a workload has the same in its name and in the bars of its GPUs."""

from __future__ import annotations

import re
from dataclasses import replace

from otel_gpu.export.text import Paint, Style
from otel_gpu.top.board import Seen
from otel_gpu.top.colours import Colours
from otel_gpu.top.cycle import Cycle, Workload
from otel_gpu.top.holdings import Holding
from otel_gpu.top.layout import Canvas
from otel_gpu.top.looking import Looking
from otel_gpu.top.screen import About, draw
from tests.unit.top.cycles import crowd, workload

GIB = 1 << 30


def on(title: str, *gpus: int) -> Workload:
    return replace(workload(title, GIB), gpus=frozenset(gpus))


def test_who_shares_a_gpu_has_another_colour_as_far_as_there_are_any() -> None:
    colours = Colours()
    five = [on(f"w{number}", 0) for number in range(5)]
    colours.update(five)
    assert len({colours.of(each.key) for each in five}) == 5
    colours.update([*five, on("sixth", 0)])
    assert colours.of(on("sixth").key) != ()


def test_a_colour_is_kept_while_its_workload_is_there_and_is_the_same_for_whoever_looks() -> None:
    colours, again = Colours(), Colours()
    first, second = on("first", 0), on("second", 0)
    colours.update([first, second])
    kept = colours.of(second.key)
    colours.update([second])
    assert colours.of(second.key) == kept
    assert colours.of(first.key) == ()
    again.update([second, first])
    colours.update([first, second])
    assert [again.of(each.key) for each in (first, second)] == [colours.of(each.key) for each in (first, second)]


def shown() -> Cycle:
    """A GPU of which one holds half of what is measured, another the rest, and the second all that is inferred."""
    cycle = crowd(on("alpha", 0), on("beta", 0))
    alpha, beta = (each.key for each in cycle.workloads)
    gpu = cycle.gpus[0]
    assert gpu.memory is not None
    measured = gpu.memory.measured_bytes
    held = (
        Holding(alpha, measured // 2, 0),
        Holding(beta, measured - measured // 2, gpu.memory.inferred_bytes),
    )
    return replace(cycle, gpus=(replace(gpu, holdings=held),))


def test_a_bar_is_of_those_who_hold_the_memory_in_the_colours_of_their_names() -> None:
    looking = Looking()
    lines = draw(looking, Seen(shown()), About(), Canvas(140, 30, Paint(enabled=True)))
    alpha, beta = (looking.colours.of(each.key)[0].value for each in shown().workloads)
    assert alpha != beta
    bar = next(line for line in lines if "A100" in line)
    segments = re.findall(r"\x1b\[(\d+)m([█▒]+)\x1b\[0m", bar)
    assert [(colour, marks[0]) for colour, marks in segments] == [(alpha, "█"), (beta, "█"), (beta, "▒")]
    assert abs(len(segments[0][1]) - len(segments[1][1])) <= 1
    assert any(f"\x1b[{beta}mbeta" in line for line in lines)
    assert Style.RED.value not in {alpha, beta}  # that is what nobody explains


def test_without_colours_the_bar_has_the_same_marks() -> None:
    painted, plain = (
        next(
            line
            for line in draw(Looking(), Seen(shown()), About(), Canvas(140, 30, Paint(enabled=enabled)))
            if "A100" in line
        )
        for enabled in (True, False)
    )
    assert re.sub(r"\x1b\[\d+m", "", painted) == plain
