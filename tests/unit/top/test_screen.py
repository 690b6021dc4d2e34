from __future__ import annotations

import re
from dataclasses import replace

import pytest

from otel_gpu.export.table_figures import in_ascii
from otel_gpu.export.text import Paint, cells
from otel_gpu.model import SourceOutcome, SourceState
from otel_gpu.top.board import Lost, Seen
from otel_gpu.top.cycle import Cycle
from otel_gpu.top.layout import Canvas
from otel_gpu.top.looking import Looking
from otel_gpu.top.screen import About, draw
from otel_gpu.web.particulars import About as AgentAbout
from tests.builders import CONTAINER_ID, GIB, attribute, attribution, gpu, listed, memory, mig, snapshot
from tests.unit.top.cycles import crowd, cycle, drawn, workload

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


def many(count: int = 100) -> Cycle:
    return crowd(*(workload(f"workload-{at:03}", at * GIB, processes=3) for at in range(count)))


def many_gpus(count: int = 16) -> Cycle:
    return cycle(
        attribute(
            None, snapshot(*(gpu(at, mig=[mig(f"MIG-{at}{n}", (n, 0)) for n in range(7)]) for at in range(count)))
        )
    )


CYCLES = {
    "something of everything": cycle(),
    "a hundred workloads": many(),
    "sixteen GPUs with instances": many_gpus(),
    "nobody": cycle(attribute(None, snapshot(gpu(0)))),
    "no GPU": cycle(attribute(None, snapshot(sources=[SourceOutcome("nvml", SourceState.UNAVAILABLE, "no driver")]))),
    **{name: cycle(attribution(text)) for name, text in HOSTILE.items()},
}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("shown", CYCLES.values(), ids=CYCLES)
@pytest.mark.parametrize("lost", [None, Lost(1.7e9, "connection refused " * 20)], ids=["current", "lost"])
def test_a_screen_is_never_larger_than_the_terminal_and_nothing_on_it_acts(
    shown: Cycle, size: tuple[int, int], lost: Lost | None
) -> None:
    columns, rows = size
    for keys in ("", "p", "jp", "h", "t", "/x", "Gp", " "):
        looking = Looking()
        for key in keys:
            looking.press(key, shown)
        lines = draw(looking, Seen(shown, lost), About(), Canvas(columns, rows, Paint(enabled=False)))
        assert len(lines) == rows
        assert max(map(cells, lines)) <= columns
        assert all(character.isprintable() for line in lines for character in line)


def test_colours_change_nothing_but_colours() -> None:
    plain, coloured = (
        draw(Looking(), Seen(cycle()), About(), Canvas(100, 30, Paint(enabled=enabled))) for enabled in (False, True)
    )
    assert not any("\x1b" in line for line in plain)
    assert any("\x1b[32m" in line for line in coloured)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == plain


# ---------------------------------------------------------------------------- what stands where


def test_the_first_line_tells_who_when_how_often_and_who_is_not_well() -> None:
    assert drawn(cycle(), 140)[0] == ("otel-gpu  node-1  22:13:25 UTC  nvml degraded (t)  every 5 s  driver 570.124.06")
    simulated = cycle(about=AgentAbout("1", "node-1", 5.0, "asked for"))
    assert "node-1  SIMULATED  22:13:25 UTC" in drawn(simulated, 140)[0]
    assert "sources ok" in drawn(replace(cycle(), sources=()), 140)[0]


def test_the_second_line_is_the_whole_host_in_five_figures() -> None:
    assert drawn(many(2), 140)[1].startswith("2 of 3 GPUs  68.0/160.0 GiB in use  94 % attributed  60 W  ")
    whole = replace(cycle(), gpus=cycle().gpus[:2])
    assert drawn(whole, 140)[1].startswith("2 GPUs  68.0/160.0 GiB in use  94 % attributed  60 W  ")
    powerless = replace(whole, gpus=(whole.gpus[0], replace(whole.gpus[1], power_w=None)))
    assert "  60 W of 1  " in drawn(powerless, 140)[1]


BUSY, IDLE = workload("a", 4 * GIB, state="busy"), workload("b", 2 * GIB, state="idle")
UNDECIDED = workload("c", 8 * GIB, state="unknown")
UNTOLD = workload("c", None, state="unknown")
GIVEN = workload("e", 0, state="allocated")
ENDED = workload("d", None, state=None, ended=True)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (crowd(BUSY), "0 MiB held idle"),
        (crowd(BUSY, IDLE), "2.0 GiB held idle by 1"),
        (crowd(BUSY, UNDECIDED), "0 MiB held idle, 8.0 GiB undecided"),
        (crowd(IDLE, UNDECIDED, ENDED), "2.0 GiB held idle by 1, 8.0 GiB undecided"),
        (crowd(UNDECIDED), "- held idle, 8.0 GiB undecided"),
        (crowd(UNDECIDED, ENDED), "- held idle, 8.0 GiB undecided"),
        (crowd(UNTOLD), "- held idle"),
        (crowd(UNDECIDED, GIVEN), "- held idle, 8.0 GiB undecided"),
        (crowd(BUSY, UNTOLD), "0 MiB held idle, 1 undecided"),
        (replace(crowd(ENDED), all_told=True), "0 MiB held idle"),
        (replace(crowd(ENDED), all_told=False), "- held idle"),
    ],
)
def test_what_is_held_idle_is_told_of_those_that_are_decided_and_the_rest_beside_it(shown: Cycle, words: str) -> None:
    assert drawn(shown, 140)[1].endswith(f"  {words}")


def test_a_reason_that_begins_with_the_state_does_not_say_it_twice() -> None:
    gpus = [replace(gpu, health="paused", reason="paused at 10:00:00 UTC until resumed") for gpu in cycle().gpus]
    paused = replace(cycle(), gpus=tuple(gpus), sources=())
    assert drawn(paused, 200)[4].endswith("  paused at 10:00:00 UTC until resumed")
    looking = Looking()
    looking.press("t", paused)
    troubles = drawn(paused, 200, looking=looking)
    assert "GPU 0: paused at 10:00:00 UTC until resumed" in troubles
    assert any(line.endswith("  failed: GPU is lost: it fell off the bus") for line in drawn(cycle(), 200))


def test_where_a_workload_belongs_keeps_its_end_which_tells_replicas_apart() -> None:
    pods = [replace(workload(end, GIB), pod=f"a-pod-of-some-length-{end}") for end in ("5w7lx", "86tsb")]
    lines = drawn(crowd(*pods), 115)
    for pod in pods:
        [line] = [line for line in lines if f" {pod.title} " in line]
        assert re.search(rf"  container · \S*…\S*{pod.title}  ", line)


def test_a_process_in_nobodys_container_is_on_the_host_itself() -> None:
    [line] = [line for line in drawn(cycle(), 140) if line.startswith(("> host ", "  host "))]
    assert re.split(" {2,}", line[2:])[:2] == ["host", "the host itself"]


@pytest.mark.parametrize("rows", [10, 24])
def test_what_stands_above_is_not_cut_in_a_narrow_terminal(rows: int) -> None:
    simulated = cycle(about=AgentAbout("1", "node-of-some-length-1", 5.0, "asked for"))
    lines = drawn(replace(simulated, sources=()), 40, rows)
    heading = next(number for number, line in enumerate(lines) if line.startswith("GPU"))
    assert lines[0] == "node-of-some-l…  SIMULATED  22:13:25 UTC"
    assert lines[1] == "2 of 3 GPUs  68.0/160.0 GiB in use"
    rest = [] if rows == 10 else ["94 % attributed  60 W", "- held idle, 64.0 GiB undecided"]
    assert lines[2:heading] == rest


def test_each_gpu_is_a_bar_and_instances_stand_under_it() -> None:
    lines = drawn(cycle(), 140, 40)
    assert re.match(r"  0  A100-SXM4-80GB  █{27,28}▒{2,3}:?·+  60\.0/80\.0 GiB   83 %   60 W  49 °C  ok", lines[3])
    assert re.match(r"     └ 1g\.10gb       █{16}·{24}   4\.0/10\.0 GiB", lines[5])
    assert re.match(r"  2  A100-SXM4-80GB  - +- +-      -      -  failed: GPU is lost: it fell off the bus", lines[6])


def test_where_instances_have_no_room_the_gpus_have_and_what_is_left_out_is_told() -> None:
    lines = drawn(many_gpus(), 80, 24)
    assert not any("└" in line for line in lines)
    assert "GPUs 1 to 7 of 16: [ ] shows others" in lines
    assert any("└" in line for line in drawn(many_gpus(2), 80, 60))


def test_gpus_that_have_no_room_are_had_by_keys() -> None:
    looking, shown = Looking(), many_gpus()

    def indices(*presses: str) -> list[int]:
        for key in presses:
            looking.press(key, shown)
        return [int(line[:3]) for line in drawn(shown, 80, 24, looking) if re.match(r" +\d+  A100", line)]

    assert indices() == list(range(7))
    assert indices("]") == list(range(7, 14))
    assert indices("]") == indices("]") == list(range(9, 16))
    assert indices("[", "[") == list(range(7))
    assert any(line.startswith("GPUs 1 to 7 of 16") for line in drawn(shown, 80, 24, looking))


@pytest.mark.parametrize(
    ("columns", "headings"),
    [
        (40, "WORKLOAD MEMORY STATE"),
        (60, "WORKLOAD MEMORY SM POWER STATE"),
        (80, "WORKLOAD GPU MEMORY SM POWER ENERGY STATE"),
        (140, "WORKLOAD WHERE GPU MEMORY SM POWER ENERGY IDLE COST STATE"),
    ],
)
def test_columns_go_by_importance_and_never_wrap(columns: int, headings: str) -> None:
    (heading,) = [line for line in drawn(cycle(), columns) if "WORKLOAD" in line]
    assert heading.replace("↓", "").split() == headings.split()


def test_the_column_that_is_sorted_by_stays_whatever_its_importance() -> None:
    looking = Looking()
    looking.press("i", cycle())
    (heading,) = [line for line in drawn(cycle(), 60, looking=looking) if "WORKLOAD" in line]
    assert "↓IDLE" in heading
    looking.press("i", cycle())
    assert any("↑IDLE" in line for line in drawn(cycle(), 60, looking=looking))


def test_inferred_and_estimated_figures_have_the_pages_marks() -> None:
    lines = {line.split()[0]: line for line in drawn(cycle(), 140) if line[:1] == " " and line.split()}
    assert "~ 4.5 GiB" in lines["host"]
    assert "≈" in lines["unidentified"]
    assert "~" not in lines["dddddddddddd"]


def test_the_selected_line_is_marked_and_in_sight_wherever_it_is() -> None:
    looking, shown = Looking(), many()
    for _ in range(40):
        looking.press("down", shown)
        marked = [line for line in drawn(shown, looking=looking) if line.startswith("> ")]
        assert len(marked) == 1
    assert marked[0].startswith("> workload-059")
    assert any("of 100" in line for line in drawn(shown, looking=looking))
    looking.press("G", shown)
    assert any(line.startswith("> workload-000") for line in drawn(shown, looking=looking))


def test_an_opened_workload_has_its_full_names_and_its_processes_in_the_same_columns() -> None:
    looking = Looking()
    looking.press("p", cycle())
    lines = drawn(cycle(), 140, looking=looking)
    at = next(number for number, line in enumerate(lines) if line.startswith("> vllm-chat"))
    assert lines[at + 1 : at + 7] == [
        "    pod inference/vllm-chat-0",
        "    image vllm:1",
        f"    container {CONTAINER_ID}",
        "    memory: 54.0 GiB measured, by the driver's process lists",
        "    energy: 272 J estimated (shared with others)",
        "    idle: not known: nobody can tell who works here",
    ]
    assert lines[at + 7].startswith("    100 vllm-chat")
    assert lines[at].index("54.0 GiB") == lines[at + 7].index("54.0 GiB")


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (CYCLES["nobody"], "nobody holds a GPU"),
        (CYCLES["no GPU"], "who holds a GPU is not known"),
        (CYCLES["no GPU"], "no GPU could be read"),
    ],
)
def test_nobody_and_not_known_are_told_apart(shown: Cycle, words: str) -> None:
    assert words in drawn(shown)


def test_a_filter_that_nobody_passes_says_so() -> None:
    looking = Looking()
    for key in "/zzz":
        looking.press(key, cycle())
    lines = drawn(cycle(), looking=looking)
    assert "no workload matches this filter" in lines
    assert lines[-1].startswith("filter: zzz_")
    assert any(line.startswith("0 of 5 workloads  filter: zzz") for line in lines)


def test_the_foot_has_the_keys_that_there_is_room_for() -> None:
    assert drawn(cycle(), 40)[-1] == "q quit  h help  t troubles  / filter"
    assert drawn(cycle(), 140)[-1].endswith("e energy i idle c cost")


def test_help_names_every_key_and_every_mark() -> None:
    looking = Looking()
    looking.press("h", cycle())
    text = "\n".join(drawn(cycle(), 80, 24, looking))
    assert all(word in text for word in ("quit", "filter", "freeze", "█ measured", "▒ inferred", "≈ is estimated"))
    assert "more lines" not in text


def test_troubles_are_told_in_full_with_what_to_do() -> None:
    looking = Looking()
    looking.press("t", cycle())
    text = " ".join(" ".join(drawn(cycle(), 60, 24, looking)).split())
    assert "nvml: degraded: GPU 2: GPU is lost: it fell off the bus" in text
    assert "otel-gpu doctor" in text


# ---------------------------------------------------------------------------- old, frozen, too small, not yet


def test_what_is_old_says_so_since_when_and_why_and_every_figure_is_dim() -> None:
    seen = Seen(cycle(), Lost(1.7e9, "connection refused"))
    lines = draw(Looking(), seen, About("http://node-1:9464"), Canvas(200, 30, Paint(enabled=True)))
    assert "LOST since 22:13:20 UTC: connection refused. What you see is OLD, of 22:13:25 UTC." in lines[1]
    figures = [line for line in lines if "GiB" in line]
    assert len(figures) > 5
    assert all(line.startswith("\x1b[2") for line in figures)
    assert not any("\x1b[32m" in line for line in figures)


def test_a_frozen_screen_says_so() -> None:
    looking = Looking()
    looking.press(" ", cycle())
    lines = drawn(many(), 120, looking=looking)
    assert "FROZEN at 22:13:25 UTC" in lines[0]
    assert any("vllm-chat" in line for line in lines)
    assert "space go on" in lines[-1]


@pytest.mark.parametrize("size", [(39, 24), (80, 9), (10, 3), (1, 1)])
def test_a_terminal_that_is_too_small_says_so_in_the_lines_it_has(size: tuple[int, int]) -> None:
    columns, rows = size
    lines = drawn(cycle(), columns, rows)
    assert 1 <= len(lines) <= rows
    assert all(cells(line) <= columns for line in lines)
    words = f"needs 40x10, is {columns}x{rows}: too small for otel-gpu top"
    assert words.replace(" ", "").startswith("".join(lines).replace(" ", ""))


def test_the_size_that_is_needed_and_the_one_there_is_have_room_in_few_columns() -> None:
    assert drawn(cycle(), 39, 9)[0].startswith("needs 40x10, is 39x9")
    assert drawn(cycle(), 20, 9) == ["needs 40x10, is", "20x9: too small for", "otel-gpu top"]
    assert drawn(cycle(), 20, 2) == ["needs 40x10, is", "20x2: too small for"]


def test_before_the_first_cycle_it_is_told_what_is_under_way() -> None:
    canvas = Canvas(80, 24, Paint(enabled=False))
    assert "looking at the GPUs…" in draw(Looking(), Seen(), About(), canvas)
    assert "asking the agent at http://h:1…" in draw(Looking(), Seen(), About("http://h:1"), canvas)


def test_wide_names_leave_the_columns_where_they_are() -> None:
    lines = drawn(cycle(attribution("模型推理")), 100)
    (wide,) = [line for line in lines if line.startswith("> 模型推理")]
    (plain,) = [line for line in lines if line.startswith("  unidentified")]
    assert cells(wide[: wide.index("54.0 GiB") + 8]) == cells(plain[: plain.index("1.0 GiB") + 7])


def test_a_terminal_that_knows_ascii_only_gets_as_many_cells() -> None:
    for line in drawn(cycle(attribution("模型 ü")), 100, 30):
        shown = in_ascii(line)
        assert shown.isascii()
        assert len(shown) == cells(line)


def test_a_pods_answer_has_no_gpus() -> None:
    lines = drawn(replace(cycle(), pod="team/pod-0"), 140)
    assert "pod team/pod-0" in lines[0]
    assert not any("TEMP" in line or "held idle" in line for line in lines)


def test_memory_that_is_all_free_is_a_bar_of_dots() -> None:
    shown = cycle(attribute(None, snapshot(gpu(0, [listed(1, None)], memory=memory(used_gib=0, reserved_gib=0)))))
    assert "·" * 30 in drawn(shown, 140)[3]
