from __future__ import annotations

import re
from dataclasses import replace

import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.export.table import render
from otel_gpu.export.table_figures import whole
from otel_gpu.export.text import Paint
from otel_gpu.model import (
    GpuReading,
    MemorySplit,
    Report,
    SourceOutcome,
    SourceState,
)
from otel_gpu.sources.sim import SimulatedHost, demo_world
from otel_gpu.version import __version__
from tests.builders import GIB, attribute, attribution, facts, failed_gpu, gpu, listed, memory, mig, snapshot

GOLDEN = f"""\
otel-gpu {__version__}  2023-11-14T22:13:25Z  driver 570.124.06

GPU  NAME            MEMORY                    USED     LIMIT  UTIL  POWER   TEMP  STATE
  0  A100-SXM4-80GB  ██████████████▒·····  60.0 GiB  80.0 GiB  83 %   60 W  49 °C  ok
  1  H100 80GB HBM3  █░··················   8.0 GiB  80.0 GiB     -    0 W      -  ok
     └ 1g.10gb       ████████············   4.0 GiB  10.0 GiB
  2  A100-SXM4-80GB  -                            -         -     -      -      -  failed

GPU    MiB  = MEASURED  + INFERRED  + UNATTR  + DRIVER  + FREE  J IN 5.0 s  = WORKLOADS  + NOBODY  + UNATTR
  0  81920       56832        4608         0      1024   19456         300          300         0         0
  1  81920        4096           0      4096      1024   72704           3            3         0         0
  2      -           -           -         -         -       -           -            -         -         -

WORKLOAD        KIND          POD OR IMAGE           GPU          MEMORY   INFERRED, SURE  SM   POWER  STATE
vllm-chat       container     inference/vllm-chat-0  0          54.0 GiB                    -  ≈ 54 W  unknown
host            host          the host itself        0                 -  ~ 4.5 GiB 100 %   -   ≈ 5 W  unknown
dddddddddddd    container     -                      1 1g.10gb   4.0 GiB                    -   ≈ 0 W  unknown
unidentified    host          -                      0           1.0 GiB                    -   ≈ 1 W  unknown
ollama.service  systemd_unit  -                      0           512 MiB                    -   ≈ 1 W  unknown

PID  PROCESS    WORKLOAD        GPU          MEMORY  SM   POWER  STATE
100  vllm-chat  vllm-chat       0          54.0 GiB   -  ≈ 54 W  unknown
300  python3    dddddddddddd    1 1g.10gb   4.0 GiB   -   ≈ 0 W  unknown
999  -          unidentified    0           1.0 GiB   -   ≈ 1 W  unknown
200  ollama     ollama.service  0           512 MiB   -   ≈ 1 W  unknown
201  python3    host            0                 -   -   ≈ 5 W  unknown

█ measured  ▒ inferred  ░ unattributed  : the driver's own  · free
≈ estimated  ~ inferred  - not known, which is not zero
INFERRED is what the driver does not list and evidence explains, with how sure that is
POWER is the mean of the last 5.0 s

GPU 2: failed: GPU is lost: it fell off the bus
nvml: degraded: GPU 2: GPU is lost: it fell off the bus
unidentified: the driver names processes that /proc, as seen here, does not have
otel-gpu doctor tells what to do about it
"""

HOSTILE = {
    "an escape sequence": "\x1b[31mroot\x1b[0m",
    "a title sequence": "\x1b]0;pwned\x07",
    "an 8-bit escape": "\x9b2J",
    "a line end": "a\nnvml: ok\r",
    "a right-to-left override": "abc\u202egnp.exe",
    "a lone surrogate": "a\ud800b",
}


def sections(text: str) -> list[list[str]]:
    return [section.splitlines() for section in text.split("\n\n")]


def blocks(lines: list[str]) -> int:
    """How many columns stand side by side, told by gutters of two spaces that run through all lines."""
    width = max(len(line) for line in lines)
    blank = "".join(
        " " if all(position >= len(line) or line[position] == " " for line in lines) else "x"
        for position in range(width)
    )
    return len(re.split(r" {2,}", blank.strip()))


def unpainted(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_the_table_of_a_known_answer_is_this() -> None:
    assert render(attribution(), width=120) == GOLDEN


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_columns_are_aligned_and_the_tables_fit_the_width(width: int) -> None:
    _, *tables, _, _ = sections(render(attribution(), width=width))
    headings = [re.split(r" {2,}", section[0].strip()) for section in tables]
    for heading, section in zip(headings, tables, strict=True):
        assert blocks(section) == len(heading)
        assert max(len(line) for line in section) <= width
    assert len(tables) == 4
    assert ("J IN 5.0 s" in headings[1]) is (width > 100)  # energy is what a narrow terminal can do without
    assert ("KIND" in headings[2]) is (width > 100)  # it goes before names become too short to tell


def test_long_names_are_cut_so_that_the_figures_stay_on_the_line() -> None:
    answer = attribution(name="n" * 300)
    for section in sections(render(answer, width=100))[1:5]:
        assert max(len(line) for line in section) <= 100
    assert "…" in render(answer, width=100)
    assert "54.0 GiB" in render(answer, width=100)


def test_a_narrow_terminal_still_gets_a_table() -> None:
    assert "54.0 GiB" in render(attribution(), width=1)


# ---------------------------------------------------------------------------- colours and what containers control


def test_colours_are_added_only_when_asked_for() -> None:
    assert "\x1b" not in render(attribution(), width=120)
    assert "\x1b" not in render(attribution(), width=120, paint=Paint(enabled=False), simulated=True)
    coloured = render(attribution(), width=120, paint=Paint(enabled=True))
    assert "\x1b[" in coloured
    assert unpainted(coloured) == GOLDEN


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_name_cannot_act_on_the_terminal(name: str) -> None:
    """The container, its pod and its process all call themselves so."""
    text = render(attribution(name), width=200)
    assert all(character.isprintable() for line in text.splitlines() for character in line)
    assert [len(section) for section in sections(text)] == [len(section) for section in sections(GOLDEN)]
    assert text.count("\N{REPLACEMENT CHARACTER}") >= 4  # in the workload, its pod, the process, its workload


def test_what_a_driver_says_cannot_act_on_the_terminal_either() -> None:
    def told(word: str) -> str:
        reading = gpu(0, [], name=word, mig=[mig("MIG-1", (1, 0), [listed(1)], profile=word)])
        sources = [SourceOutcome("nvml", SourceState.DEGRADED, word)]
        return render(attribute(None, snapshot(reading, sources=sources)), width=200)

    text = told("\x1b[2J\n")
    assert "\x1b" not in text
    assert len(text.splitlines()) == len(told("innocent").splitlines())
    assert "\nnvml: degraded: \N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}\n" in text


# ---------------------------------------------------------------------------- what it says


def test_a_simulated_host_is_called_so_on_the_first_line() -> None:
    first = render(attribution(), width=120, simulated=True).splitlines()[0]
    assert "SIMULATED HOST: no figure here is of a real GPU" in first
    assert "SIMULATED" not in render(attribution())


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 101, 120])
def test_the_title_fits_the_width_and_the_warning_is_never_lost(width: int) -> None:
    title = sections(render(attribution(), width=width, simulated=True, notes=["n" * 200]))[0]
    assert max(len(line) for line in title) <= width
    assert any("SIMULATED HOST" in line for line in title)
    assert len(title) == (3 if width < len(f"otel-gpu {__version__}") + 83 else 2)


def test_the_reason_of_a_trouble_is_wrapped_and_not_cut() -> None:
    reason = "NVML: the library is not found: " + "install the driver " * 5 + "or try the demo"
    lines = sections(
        render(attribute(None, snapshot(sources=[SourceOutcome("nvml", SourceState.UNAVAILABLE, reason)])), width=80)
    )[-1]
    assert len(lines) == 4
    assert max(len(line) for line in lines) <= 80
    assert " ".join(" ".join(lines[:3]).split()) == f"nvml: unavailable: {reason}"
    assert lines[3] == "otel-gpu doctor tells what to do about it"


def test_an_idle_host_says_that_nobody_is_there() -> None:
    text = render(attribute(None, snapshot(gpu(0))))
    assert "nobody holds a GPU" in text
    assert "no process is on a GPU" in text


def test_a_driver_that_does_not_answer_does_not_mean_that_nobody_is_there() -> None:
    sources = [SourceOutcome("nvml", SourceState.UNAVAILABLE, "NVML: no driver")]
    text = render(attribute(None, snapshot(sources=sources)))
    assert sections(text)[1:] == [
        ["no GPU could be read"],
        ["who holds a GPU is not known"],
        ["which processes are on a GPU is not known"],
        ["nvml: unavailable: NVML: no driver", "otel-gpu doctor tells what to do about it"],
    ]


@pytest.mark.parametrize(
    "silent",
    [failed_gpu(1), gpu(1, None), gpu(1, [], mig=[mig("MIG-1", (1, 0), None)])],
    ids=["a lost GPU", "no process lists", "no process lists of an instance"],
)
def test_one_gpu_that_does_not_tell_who_is_on_it_leaves_that_open(silent: GpuReading) -> None:
    text = render(attribute(None, snapshot(gpu(0), silent)))
    assert "who holds a GPU is not known" in text
    assert "which processes are on a GPU is not known" in text
    assert "nobody" not in text


def test_a_gpu_with_instances_tells_by_them_who_is_on_it() -> None:
    assert "nobody holds a GPU" in render(attribute(None, snapshot(gpu(0, None, mig=[mig("MIG-1", (1, 0), [])]))))


def test_sources_that_are_ok_are_not_mentioned() -> None:
    assert "nvml" not in render(attribute(None, snapshot(gpu(0))))


def test_who_holds_most_comes_first() -> None:
    answer = attribute(
        None,
        snapshot(
            gpu(0, [listed(1, GIB), listed(2, 3 * GIB), listed(3, None), listed(4, 2 * GIB)]),
            processes=[facts(pid) for pid in (1, 2, 3, 4)],
        ),
    )
    processes = sections(render(answer))[3]
    assert [line.split()[0] for line in processes[1:]] == ["2", "4", "1", "3"]


def only_gpu_line(answer: Report) -> str:
    return sections(render(answer, width=120))[1][1]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (MemorySplit(20, None, 20, 0, 0, 0, 0), "█" * 20),
        (MemorySplit(20, None, 0, 0, 0, 20, 0), "░" * 20),
        (MemorySplit(20, None, 0, 0, 0, 0, 20), "·" * 20),
        (MemorySplit(20, 5, 5, 0, 0, 5, 5), "█" * 5 + "░" * 5 + ":" * 5 + "·" * 5),
        (MemorySplit(20, 5, 5, 0, 5, 0, 5), "█" * 5 + "▒" * 5 + ":" * 5 + "·" * 5),
        (MemorySplit(1000, 0, 1, 0, 0, 1, 998), "█░" + "·" * 18),
        (MemorySplit(800, 9, 20, 0, 0, 0, 771), "█" + "·" * 19),
        (MemorySplit(1000, 0, 990, 0, 9, 1, 0), "█" * 18 + "▒░"),
    ],
    ids=[
        "all measured",
        "all unattributed",
        "all free",
        "a quarter each",
        "a quarter inferred",
        "hardly anything",
        "less than what is reserved",
        "a little of a full GPU",
    ],
)
def test_the_bar_shows_who_is_known_who_is_not_and_what_is_left(parts: MemorySplit, expected: str) -> None:
    answer = attribute(None, snapshot(gpu(0)))
    line = only_gpu_line(replace(answer, gpus=(answer.gpus[0]._replace(memory=parts),)))
    assert re.findall("[█▒░:·]{2,}", line) == [expected]


def test_claims_beyond_what_is_used_do_not_make_the_bar_longer() -> None:
    claims = [listed(1, 60 * GIB), listed(2, 60 * GIB)]
    answer = attribute(None, snapshot(gpu(0, claims, memory=memory(used_gib=79, reserved_gib=1))))
    assert "█" * 20 + "  " in only_gpu_line(answer)


def test_memory_of_nothing_has_no_bar() -> None:
    answer = attribute(None, snapshot(gpu(0, memory=memory(total_gib=0, used_gib=0, reserved_gib=0))))
    assert only_gpu_line(answer).split()[-9:] == ["-", "0", "MiB", "0", "MiB", "-", "-", "-", "ok"]


# ---------------------------------------------------------------------------- sums


def figures(answer: Report, width: int = 200) -> list[int]:
    """The figures of the first GPU's line of sums."""
    return [int(word) for word in sections(render(answer, width=width))[2][1].split()]


def test_the_parts_of_a_gpus_memory_and_energy_add_up_as_they_are_shown() -> None:
    index, limit, *memory_parts, energy, attributed, idle, unattributed = figures(attribution())
    assert (index, limit) == (0, 80 * 1024)
    assert sum(memory_parts) == limit
    assert attributed + idle + unattributed == energy == 300


@pytest.mark.parametrize("interval_s", [1, 5, 60])
def test_the_watts_of_workloads_of_nobody_and_of_the_unattributed_add_up_to_the_gpus(interval_s: int) -> None:
    clock = ManualClock()
    host = SimulatedHost(demo_world(1), clock)
    engine = Engine(
        gpus=host.gpu_source(),
        processes=host.process_source(),
        names=[host.name_source()],
        clock=clock,
        options=AttributionOptions(),
    )
    for _ in range(4):
        clock.advance(interval_s)
        answer = engine.sample()
    engine.close()
    _, gpus, sums, workloads, *_ = sections(render(answer, width=300))
    assert f"J IN {interval_s}.0 s" in sums[0]
    for index in range(4):
        (shown,) = (int(found[1]) for line in gpus if (found := re.match(rf" +{index}  .* (\d+) W ", line)))
        (summed,) = (line.split() for line in sums if line.split()[0] == str(index))
        parts = [
            int(found[2])
            for line in workloads
            if (found := re.search(r"  (\d)(?: \dg\.\d+gb)? .* (\d+) W  ", line)) and int(found[1]) == index
        ]
        others_w = sum(map(int, summed[-2:])) / interval_s
        assert len(parts) > 1
        assert abs(sum(parts) + others_w - shown) <= (len(parts) + 3) / 2
    assert (interval_s == 60) is any(line.endswith("ended") for line in workloads)  # they took part in it


def test_power_is_what_is_drawn_now_where_there_is_no_window_to_tell_of() -> None:
    text = render(attribute(None, snapshot(gpu(0, power_w=70))))
    assert " 70 W " in text
    assert "mean" not in text


def test_a_small_screen_has_the_sums_where_they_leave_half_of_it_to_who_uses_gpus() -> None:
    answer = attribution()
    assert "= MEASURED" in render(answer, width=120, height=34)
    assert "= MEASURED" not in render(answer, width=120, height=24)
    assert len(render(answer, width=120, height=34).splitlines()) <= 34


def test_figures_that_rounding_would_spoil_add_up_too() -> None:
    third = (1 << 20) + (1 << 20) // 3
    answer = attribute(None, snapshot(gpu(0)))
    split = MemorySplit(6 * third, third, 2 * third, 0, third, third, third)
    _, limit, *parts = figures(replace(answer, gpus=(answer.gpus[0]._replace(memory=split),)))
    assert limit == 8
    assert sum(parts) == limit


def test_what_the_lists_count_twice_is_taken_off() -> None:
    claims = [listed(1, 60 * GIB), listed(2, 60 * GIB)]
    answer = attribute(None, snapshot(gpu(0, claims, memory=memory(used_gib=79, reserved_gib=1))))
    assert "- OVERCOUNT" in render(answer)
    _, limit, measured, overcount, *others = figures(answer)
    assert measured - overcount + sum(others) == limit
    assert measured == 120 * 1024


def test_a_driver_that_does_not_tell_its_own_memory_apart_has_a_dash_there() -> None:
    answer = attribute(None, snapshot(gpu(0, memory=memory(reserved_gib=None))))
    assert sections(render(answer))[2][1].split()[5] == "-"


def test_a_terminal_too_narrow_for_sums_goes_without() -> None:
    assert "= MEASURED" in render(attribution(), width=70)
    assert "= MEASURED" not in render(attribution(), width=60)


def test_whole_units_add_up_to_the_rounded_sum() -> None:
    assert whole([5, 5, 5, 5], 10) == [1, 0, 1, 0]
    assert whole([14, -4, 0], 10) == [1, 0, 0]


# ---------------------------------------------------------------------------- who, when, what the marks mean


def test_the_title_tells_the_version_the_host_the_time_and_the_driver() -> None:
    first = render(attribution(), width=120, host_name="node-\x1b1").splitlines()[0]
    assert first == f"otel-gpu {__version__}  node-\N{REPLACEMENT CHARACTER}1  2023-11-14T22:13:25Z  driver 570.124.06"


def test_marks_are_explained_where_there_are_any() -> None:
    legend = sections(render(attribution(), width=120))[-2]
    assert legend == [
        "█ measured  ▒ inferred  ░ unattributed  : the driver's own  · free",
        "≈ estimated  ~ inferred  - not known, which is not zero",
        "INFERRED is what the driver does not list and evidence explains, with how sure that is",
        "POWER is the mean of the last 5.0 s",
    ]
    assert "measured" not in render(attribute(None, snapshot()))


def test_why_a_gpu_gives_no_figures_is_told_in_full_and_once() -> None:
    reason = "GPU is lost: " + "it fell off the bus " * 8
    by_gpu = SourceOutcome("nvml", SourceState.DEGRADED, f"GPU 1: {reason}", by_gpu=True)
    text = " ".join(
        render(attribute(None, snapshot(gpu(0), failed_gpu(1, reason), sources=[by_gpu])), width=80).split()
    )
    assert text.count(" ".join(reason.split())) == 1
    assert "GPU 1: failed: GPU is lost" in text


def test_a_simulated_host_is_nothing_for_doctor() -> None:
    assert "doctor" in render(attribution())
    assert "doctor" not in render(attribution(), simulated=True)
