from __future__ import annotations

import re

import pytest

from otel_gpu.model import SourceOutcome, SourceState
from otel_gpu.top.latest import Latest, Outage
from otel_gpu.top.layout import Canvas
from otel_gpu.top.navigation import Navigation
from otel_gpu.top.screen import draw
from otel_gpu.view.model import View
from otel_gpu.view.terminal import Paint, cells, in_ascii
from tests.builders import CONTAINER_ID, GIB, attribute, attribution, gpu, listed, memory, mig, snapshot
from tests.unit.top.views import crowd, drawn, row, simulated, view_of

HOSTILE = {
    "an escape sequence": "\x1b[31mroot\x1b[0m",
    "a title sequence": "\x1b]0;pwned\x07",
    "an 8-bit escape": "\x9b2J",
    "a line end": "a\nb\r",
    "a right-to-left override": "abc\u202egnp.exe",
    "a lone surrogate": "a\ud800b",
    "wide characters": "模型推理服务" * 20,
    "marks": "e\u0301" * 100,
    "10 kB": "A" * 10_000,
}
SIZES = [(40, 10), (80, 24), (140, 40)]


def many(count: int = 100) -> View:
    return crowd(*(row(f"workload-{at:03}", at * GIB, processes=3) for at in range(count)))


def many_gpus(count: int = 16) -> View:
    return view_of(
        attribute(
            None, snapshot(*(gpu(at, mig=[mig(f"MIG-{at}{n}", (n, 0)) for n in range(7)]) for at in range(count)))
        )
    )


VIEWS = {
    "something of everything": view_of(),
    "a hundred workloads": many(),
    "sixteen GPUs with instances": many_gpus(),
    "no workload": view_of(attribute(None, snapshot(gpu(0)))),
    "no GPU": view_of(attribute(None, snapshot(sources=[SourceOutcome("nvml", SourceState.UNAVAILABLE, "no driver")]))),
    **{name: view_of(attribution(text)) for name, text in HOSTILE.items()},
}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("shown", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("lost", [None, Outage(1.7e9, "connection refused " * 20)], ids=["current", "lost"])
def test_the_screen_fits_the_terminal_and_is_printable(shown: View, size: tuple[int, int], lost: Outage | None) -> None:
    columns, rows = size
    for keys in ("", "p", "jp", "h", "t", "/x", "Gp", " "):
        navigation = Navigation()
        for key in keys:
            navigation.press(key, shown)
        lines = draw(navigation, Latest(shown, lost), None, Canvas(columns, rows, Paint(enabled=False)))
        assert len(lines) == rows
        assert max(map(cells, lines)) <= columns
        assert all(character.isprintable() for line in lines for character in line)


def test_colours_change_no_text() -> None:
    plain, coloured = (
        draw(Navigation(), Latest(view_of()), None, Canvas(100, 30, Paint(enabled=enabled)))
        for enabled in (False, True)
    )
    assert not any("\x1b" in line for line in plain)
    assert any("\x1b[32m" in line for line in coloured)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == plain


# ---------------------------------------------------------------------------- what stands where


def test_the_first_line_has_host_time_problems_and_interval() -> None:
    assert drawn(view_of(), 140)[0] == (
        "otel-gpu  node-1  22:13:25 UTC  GPU 2 failed, nvml degraded, unidentified processes (t)  every 5 s"
        "  driver 570.124.06"
    )
    demo = simulated()
    assert "node-1  SIMULATED  22:13:25 UTC" in drawn(demo, 140)[0]
    assert "no problems" in drawn(view_of()._replace(problems=()), 140)[0]


def test_the_second_line_has_the_totals() -> None:
    view = many(2)
    assert drawn(view, 140)[1] == "  ".join(total.brief for total in view.totals)
    assert drawn(view, 140)[1].startswith("2 of 3 GPUs  68.0/160.0 GiB in use  94 % attributed  60 W  ")


def test_the_end_of_the_origin_is_visible_which_differs_between_replicas() -> None:
    rows = [row(end, GIB, origin=f"container · a-pod-of-some-length-{end}") for end in ("5w7lx", "86tsb")]
    lines = drawn(crowd(*rows), 115)
    for each in rows:
        [line] = [line for line in lines if f" {each.name} " in line]
        assert re.search(rf"  container · \S*…\S*{each.name}  ", line)


def test_workloads_of_one_name_are_distinct_in_80_columns() -> None:
    rows = [row(f"evaluation-of-a-model ({end})", 5) for end in ("qfvnd", "x2kfp")]
    lines = "\n".join(drawn(crowd(*rows)))
    assert re.search(r"evalu\S*…\S*.*qfvnd\)", lines)
    assert re.search(r"evalu\S*…\S*.*x2kfp\)", lines)


def test_a_process_outside_of_containers_is_on_the_host_itself() -> None:
    [line] = [line for line in drawn(view_of(), 140) if line.startswith(("> host ", "  host "))]
    assert re.split(" {2,}", line[2:])[:2] == ["host", "the host itself"]


@pytest.mark.parametrize("rows", [10, 24])
def test_the_head_is_not_cut_in_a_narrow_terminal(rows: int) -> None:
    demo = simulated(host_name="node-of-some-length-1")
    lines = drawn(demo._replace(problems=()), 40, rows)
    heading = next(number for number, line in enumerate(lines) if line.startswith("GPU"))
    assert lines[0] == "node-of-some-l…  SIMULATED  22:13:25 UTC"
    assert lines[1] == "2 of 3 GPUs  68.0/160.0 GiB in use"
    rest = [] if rows == 10 else ["94 % attributed  60 W", "– held idle, 64.0 GiB undecided"]
    assert lines[2:heading] == rest


def test_each_gpu_is_a_bar_with_its_instances_below() -> None:
    lines = drawn(view_of(), 140, 40)
    assert re.match(r"  0  A100-SXM4-80GB  █{27,28}▒{2,3}:?·+  60\.0/80\.0 GiB   83 %   60 W  49 °C  ok", lines[3])
    assert re.match(r"     └ 1g\.10gb       █{16}·{24}   4\.0/10\.0 GiB", lines[5])
    assert re.match(r"  2  A100-SXM4-80GB  – +– +–      –      –  failed: GPU is lost: it fell off the bus", lines[6])


def test_without_room_instances_are_left_out_and_then_gpus() -> None:
    lines = drawn(many_gpus(), 80, 24)
    assert not any("└" in line for line in lines)
    assert "GPUs 1 to 7 of 16: [ ] for others" in lines
    assert any("└" in line for line in drawn(many_gpus(2), 80, 60))


def test_keys_scroll_gpus_that_do_not_fit() -> None:
    navigation, shown = Navigation(), many_gpus()

    def indices(*presses: str) -> list[int]:
        for key in presses:
            navigation.press(key, shown)
        return [int(line[:3]) for line in drawn(shown, 80, 24, navigation) if re.match(r" +\d+  A100", line)]

    assert indices() == list(range(7))
    assert indices("]") == list(range(7, 14))
    assert indices("]") == indices("]") == list(range(9, 16))
    assert indices("[", "[") == list(range(7))
    assert any(line.startswith("GPUs 1 to 7 of 16") for line in drawn(shown, 80, 24, navigation))


@pytest.mark.parametrize(
    ("columns", "headings"),
    [
        (40, "WORKLOAD MEMORY STATE"),
        (60, "WORKLOAD MEMORY SM POWER STATE"),
        (80, "WORKLOAD GPU MEMORY SM POWER ENERGY STATE"),
        (140, "WORKLOAD WHERE GPU MEMORY SM POWER ENERGY IDLE COST STATE"),
    ],
)
def test_columns_are_dropped_by_importance(columns: int, headings: str) -> None:
    (heading,) = [line for line in drawn(view_of(), columns) if "WORKLOAD" in line]
    assert heading.replace("↓", "").split() == headings.split()


def test_the_sorted_column_is_never_dropped() -> None:
    navigation = Navigation()
    navigation.press("i", view_of())
    (heading,) = [line for line in drawn(view_of(), 60, navigation=navigation) if "WORKLOAD" in line]
    assert "↓IDLE" in heading
    navigation.press("i", view_of())
    assert any("↑IDLE" in line for line in drawn(view_of(), 60, navigation=navigation))


def test_inferred_and_estimated_figures_have_marks() -> None:
    lines = {line.split()[0]: line for line in drawn(view_of(), 140) if line[:1] == " " and line.split()}
    assert "~ 4.5 GiB" in lines["host"]
    assert "≈" in lines["unidentified"]
    assert "~" not in lines["dddddddddddd"]


def test_the_selected_line_is_marked_and_visible() -> None:
    navigation, shown = Navigation(), many()
    for _ in range(40):
        navigation.press("down", shown)
        marked = [line for line in drawn(shown, navigation=navigation) if line.startswith("> ")]
        assert len(marked) == 1
    assert marked[0].startswith("> workload-059")
    assert any("of 100" in line for line in drawn(shown, navigation=navigation))
    navigation.press("G", shown)
    assert any(line.startswith("> workload-000") for line in drawn(shown, navigation=navigation))


def test_an_open_workload_shows_names_reasons_and_processes() -> None:
    navigation = Navigation()
    navigation.press("p", view_of())
    lines = drawn(view_of(), 140, navigation=navigation)
    at = next(number for number, line in enumerate(lines) if line.startswith("> vllm-chat"))
    view = view_of()
    row = view.workloads[0]
    details = [*(each for each in row.identity if each.text != row.name), *row.explanation]
    assert f"    Id: {CONTAINER_ID}" in lines
    end = at + 1 + len(details)
    assert lines[at + 1 : end] == [f"    {each.name}: {each.text}" for each in details]
    assert lines[end].startswith("    100 vllm-chat")
    assert lines[at].index("54.0 GiB") == lines[end].index("54.0 GiB")


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (VIEWS["no workload"], "No workload uses a GPU."),
        (VIEWS["no GPU"], "The workloads on the GPUs are unknown."),
        (VIEWS["no GPU"], "No GPU could be read."),
    ],
)
def test_no_workload_and_unknown_workloads_differ(shown: View, words: str) -> None:
    assert words in drawn(shown)


def test_a_filter_without_matches_says_so() -> None:
    navigation = Navigation()
    for key in "/zzz":
        navigation.press(key, view_of())
    lines = drawn(view_of(), navigation=navigation)
    assert "No workload matches this filter." in lines
    assert lines[-1].startswith("filter: zzz_")
    assert any(line.startswith("0 of 5 workloads  filter: zzz") for line in lines)


def test_the_foot_has_the_keys_that_fit() -> None:
    assert drawn(view_of(), 40)[-1] == "q quit  h help  t problems  / filter"
    assert drawn(view_of(), 140)[-1].endswith("e energy i idle c cost")


def test_help_names_every_key_and_every_mark() -> None:
    navigation = Navigation()
    navigation.press("h", view_of())
    text = "\n".join(drawn(view_of(), 80, 24, navigation))
    assert all(word in text for word in ("quit", "filter", "freeze", "█ measured", "▒ inferred", "≈ is estimated"))
    assert "more lines" not in text


def test_problems_are_shown_in_full_with_a_fix() -> None:
    navigation = Navigation()
    navigation.press("t", view_of())
    text = " ".join(" ".join(drawn(view_of(), 60, 24, navigation)).split())
    assert "nvml: degraded: GPU 2: GPU is lost: it fell off the bus" in text
    assert "GPU 2: failed: GPU is lost: it fell off the bus" in text
    assert "otel-gpu doctor on node-1 explains how to fix this" in text
    demo = simulated()
    navigation.press("t", demo)
    navigation.press("t", demo)
    text = " ".join(" ".join(drawn(demo, 60, 24, navigation)).split())
    assert "SIMULATED HOST: no figure here is from a real GPU (asked for)" in text
    assert "otel-gpu doctor" not in text


def test_where_the_problems_do_not_fit_their_number_does() -> None:
    assert drawn(view_of(), 70)[0] == "otel-gpu  node-1  22:13:25 UTC  3 problems (t)  every 5 s"


# ---------------------------------------------------------------------------- old, frozen, too small, not yet


def test_an_outage_shows_since_when_and_why_and_dims_every_figure() -> None:
    seen = Latest(view_of(), Outage(1.7e9, "connection refused"))
    lines = draw(Navigation(), seen, "http://node-1:9464", Canvas(200, 30, Paint(enabled=True)))
    assert "Lost the agent at 22:13:20 UTC: connection refused. The figures are old, from 22:13:25 UTC." in lines[1]
    figures = [line for line in lines if "GiB" in line]
    assert len(figures) > 5
    assert all(line.startswith("\x1b[2") for line in figures)
    assert not any("\x1b[32m" in line for line in figures)


def test_a_frozen_screen_says_so() -> None:
    navigation = Navigation()
    navigation.press(" ", view_of())
    lines = drawn(many(), 120, navigation=navigation)
    assert "FROZEN at 22:13:25 UTC" in lines[0]
    assert any("vllm-chat" in line for line in lines)
    assert "space continue" in lines[-1]


@pytest.mark.parametrize("size", [(39, 24), (80, 9), (10, 3), (1, 1)])
def test_a_terminal_that_is_too_small_says_so_in_the_lines_it_has(size: tuple[int, int]) -> None:
    columns, rows = size
    lines = drawn(view_of(), columns, rows)
    assert 1 <= len(lines) <= rows
    assert all(cells(line) <= columns for line in lines)
    words = f"Terminal too small: {columns}x{rows}; otel-gpu top needs 40x10"
    assert words.replace(" ", "").startswith("".join(lines).replace(" ", ""))


def test_the_size_that_is_needed_and_the_one_there_is_have_room_in_few_columns() -> None:
    assert drawn(view_of(), 39, 9)[0].startswith("Terminal too small: 39x9;")
    assert drawn(view_of(), 20, 9) == ["Terminal too small:", "20x9; otel-gpu top", "needs 40x10"]
    assert drawn(view_of(), 20, 2) == ["Terminal too small:", "20x2; otel-gpu top"]


def test_before_the_first_view_the_screen_says_what_it_waits_for() -> None:
    canvas = Canvas(80, 24, Paint(enabled=False))
    assert "reading the GPUs…" in draw(Navigation(), Latest(), None, canvas)
    assert "connecting to the agent at http://h:1…" in draw(Navigation(), Latest(), "http://h:1", canvas)


def test_wide_names_leave_the_columns_where_they_are() -> None:
    lines = drawn(view_of(attribution("模型推理")), 100)
    (wide,) = [line for line in lines if line.startswith("> 模型推理")]
    (plain,) = [line for line in lines if line.startswith("  unidentified")]
    assert cells(wide[: wide.index("54.0 GiB") + 8]) == cells(plain[: plain.index("1.0 GiB") + 7])


def test_an_ascii_terminal_gets_as_many_cells() -> None:
    for line in drawn(view_of(attribution("模型 ü")), 100, 30):
        shown = in_ascii(line)
        assert shown.isascii()
        assert len(shown) == cells(line)


def test_a_view_of_a_pod_has_no_gpus() -> None:
    lines = drawn(view_of()._replace(about=("pod team/pod-0",), gpus=(), no_gpus="", totals=()), 140)
    assert "pod team/pod-0" in lines[0]
    assert not any("TEMP" in line or "held idle" in line for line in lines)


def test_memory_that_is_all_free_is_a_bar_of_dots() -> None:
    shown = view_of(attribute(None, snapshot(gpu(0, [listed(1, None)], memory=memory(used_gib=0, reserved_gib=0)))))
    assert "·" * 30 in drawn(shown, 140)[3]
