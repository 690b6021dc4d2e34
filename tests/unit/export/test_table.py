from __future__ import annotations

import re
from dataclasses import replace

import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.model import (
    GpuReading,
    MemorySplit,
    Report,
    SourceOutcome,
    SourceState,
)
from otel_gpu.sources.sim import SimulatedHost, demo_world
from otel_gpu.version import __version__
from otel_gpu.view.terminal import Paint
from otel_gpu.view.text import whole
from tests.builders import GIB, attribute, attribution, facts, failed_gpu, gpu, listed, memory, mig, snapshot
from tests.tables import render

GOLDEN = f"""\
otel-gpu {__version__}  2023-11-14T22:13:25Z  driver 570.124.06

GPU  NAME            MEMORY                         USED  UTIL  POWER   TEMP  STATE
  0  A100-SXM4-80GB  ██████████████▒·····  60.0/80.0 GiB  83 %   60 W  49 °C  ok
  1  H100 80GB HBM3  █░··················   8.0/80.0 GiB     –    0 W      –  ok
     └ 1g.10gb       ████████············   4.0/10.0 GiB
  2  A100-SXM4-80GB  –                                 –     –      –      –  failed

GPU    MiB  = MEASURED  + INFERRED  + UNATTR  + DRIVER  + FREE  J IN 5.0 s  = WORKLOADS  + IDLE  + UNATTR
  0  81920       56832        4608         0      1024   19456         300          300       0         0
  1  81920        4096           0      4096      1024   72704           3            3       0         0
  2      –           –           –         –         –       –           –            –       –         –

WORKLOAD        WHERE                              GPU          MEMORY         INFERRED  SM   POWER  STATE
vllm-chat       container · inference/vllm-chat-0  0          54.0 GiB                    –  ≈ 54 W  unknown
host            the host itself                    0                 –  ~ 4.5 GiB 100 %   –   ≈ 5 W  unknown
dddddddddddd    container                          1 1g.10gb   4.0 GiB                    –   ≈ 0 W  unknown
unidentified    host                               0           1.0 GiB                    –   ≈ 1 W  unknown
ollama.service  systemd unit                       0           512 MiB                    –   ≈ 1 W  unknown

PID  PROCESS    WORKLOAD        GPU          MEMORY  SM   POWER  STATE
100  vllm-chat  vllm-chat       0          54.0 GiB   –  ≈ 54 W  unknown
300  python3    dddddddddddd    1 1g.10gb   4.0 GiB   –   ≈ 0 W  unknown
999  –          unidentified    0           1.0 GiB   –   ≈ 1 W  unknown
200  ollama     ollama.service  0           512 MiB   –   ≈ 1 W  unknown
201  python3    host            0                 –   –   ≈ 5 W  unknown

█ measured  ▒ inferred  ░ unattributed  : reserved by the driver  · free
≈ estimated  ~ inferred  – unknown, which is not zero
INFERRED is memory that the driver does not list and evidence explains, with the confidence
POWER is the mean of the last 5.0 s

GPU 2: failed: GPU is lost: it fell off the bus
nvml: degraded: GPU 2: GPU is lost: it fell off the bus
unidentified: the driver lists processes that are not visible in /proc here
otel-gpu doctor explains how to fix this
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
    """The number of columns, which are separated by two blanks in all lines."""
    width = max(len(line) for line in lines)
    blank = "".join(
        " " if all(position >= len(line) or line[position] == " " for line in lines) else "x"
        for position in range(width)
    )
    return len(re.split(r" {2,}", blank.strip()))


def unpainted(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_the_table_of_a_known_report() -> None:
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
    assert ("WHERE" in headings[2]) is (width > 80)  # it goes before names become too short to tell


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


def test_text_of_a_driver_cannot_act_on_the_terminal() -> None:
    def rendered(word: str) -> str:
        reading = gpu(0, [], name=word, mig=[mig("MIG-1", (1, 0), [listed(1)], profile=word)])
        sources = [SourceOutcome("nvml", SourceState.DEGRADED, word)]
        return render(attribute(None, snapshot(reading, sources=sources)), width=200)

    text = rendered("\x1b[2J\n")
    assert "\x1b" not in text
    assert len(text.splitlines()) == len(rendered("innocent").splitlines())
    assert "\nnvml: degraded: \N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}\n" in text


# ---------------------------------------------------------------------------- what it says


def test_the_first_line_marks_a_simulated_host() -> None:
    first = render(attribution(), width=120, simulated=True).splitlines()[0]
    assert "SIMULATED HOST: no figure here is from a real GPU" in first
    assert "SIMULATED" not in render(attribution())


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 101, 120])
def test_the_title_fits_the_width_and_the_warning_is_never_lost(width: int) -> None:
    title = sections(render(attribution(), width=width, simulated=True, notes=["n" * 200]))[0]
    assert max(len(line) for line in title) <= width
    assert any("SIMULATED HOST" in line for line in title)
    assert len(title) == (3 if width < len(f"otel-gpu {__version__}") + 83 else 2)


def test_the_reason_of_a_problem_is_wrapped_and_not_cut() -> None:
    reason = "NVML: the library is not found: " + "install the driver " * 5 + "or try the demo"
    lines = sections(
        render(attribute(None, snapshot(sources=[SourceOutcome("nvml", SourceState.UNAVAILABLE, reason)])), width=80)
    )[-1]
    assert len(lines) == 4
    assert max(len(line) for line in lines) <= 80
    assert " ".join(" ".join(lines[:3]).split()) == f"nvml: unavailable: {reason}"
    assert lines[3] == "otel-gpu doctor explains how to fix this"


def test_an_idle_host_has_no_workloads() -> None:
    text = render(attribute(None, snapshot(gpu(0))))
    assert "No workload uses a GPU" in text
    assert "No process uses a GPU" in text


def test_without_a_driver_the_workloads_are_unknown() -> None:
    sources = [SourceOutcome("nvml", SourceState.UNAVAILABLE, "NVML: no driver")]
    text = render(attribute(None, snapshot(sources=sources)))
    assert sections(text)[1:] == [
        ["No GPU could be read."],
        ["The workloads on the GPUs are unknown."],
        ["The processes on the GPUs are unknown."],
        ["nvml: unavailable: NVML: no driver", "otel-gpu doctor explains how to fix this"],
    ]


@pytest.mark.parametrize(
    "silent",
    [failed_gpu(1), gpu(1, None), gpu(1, [], mig=[mig("MIG-1", (1, 0), None)])],
    ids=["a lost GPU", "no process lists", "no process lists of an instance"],
)
def test_with_one_gpu_without_process_lists_the_workloads_are_unknown(silent: GpuReading) -> None:
    text = render(attribute(None, snapshot(gpu(0), silent)))
    assert "The workloads on the GPUs are unknown" in text
    assert "The processes on the GPUs are unknown" in text
    assert "No workload uses a GPU" not in text


def test_process_lists_of_instances_count_as_lists_of_the_gpu() -> None:
    assert "No workload uses a GPU" in render(attribute(None, snapshot(gpu(0, None, mig=[mig("MIG-1", (1, 0), [])]))))


def test_sources_that_are_ok_are_not_mentioned() -> None:
    assert "nvml" not in render(attribute(None, snapshot(gpu(0))))


def test_the_largest_workload_is_first() -> None:
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
def test_the_bar_shows_every_kind_of_memory(parts: MemorySplit, expected: str) -> None:
    answer = attribute(None, snapshot(gpu(0)))
    line = only_gpu_line(replace(answer, gpus=(answer.gpus[0]._replace(memory=parts),)))
    assert re.findall("[█▒░:·]{2,}", line) == [expected]


def test_the_bar_is_not_longer_than_the_used_memory() -> None:
    claims = [listed(1, 60 * GIB), listed(2, 60 * GIB)]
    answer = attribute(None, snapshot(gpu(0, claims, memory=memory(used_gib=79, reserved_gib=1))))
    assert "█" * 20 + "  " in only_gpu_line(answer)


def test_a_gpu_with_zero_memory_has_no_bar() -> None:
    answer = attribute(None, snapshot(gpu(0, memory=memory(total_gib=0, used_gib=0, reserved_gib=0))))
    assert only_gpu_line(answer).split()[-7:] == ["–", "0/0", "MiB", "–", "–", "–", "ok"]


# ---------------------------------------------------------------------------- sums


def figures(answer: Report, width: int = 200) -> list[int]:
    """The figures of the first GPU's line of sums."""
    return [int(word) for word in sections(render(answer, width=width))[2][1].split()]


def test_printed_parts_of_memory_and_energy_add_up() -> None:
    index, limit, *memory_parts, energy, attributed, idle, unattributed = figures(attribution())
    assert (index, limit) == (0, 80 * 1024)
    assert sum(memory_parts) == limit
    assert attributed + idle + unattributed == energy == 300


@pytest.mark.parametrize("interval_s", [1, 5, 60])
def test_power_of_workloads_idle_and_unattributed_sums_to_the_gpus(interval_s: int) -> None:
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


def test_without_a_window_power_is_the_present_reading() -> None:
    text = render(attribute(None, snapshot(gpu(0, power_w=70))))
    assert " 70 W " in text
    assert "mean" not in text


def test_a_small_screen_has_sums_if_half_of_it_remains_for_workloads() -> None:
    answer = attribution()
    assert "= MEASURED" in render(answer, width=120, height=34)
    assert "= MEASURED" not in render(answer, width=120, height=24)
    assert len(render(answer, width=120, height=34).splitlines()) <= 34


def test_rounded_figures_add_up() -> None:
    third = (1 << 20) + (1 << 20) // 3
    answer = attribute(None, snapshot(gpu(0)))
    split = MemorySplit(6 * third, third, 2 * third, 0, third, third, third)
    _, limit, *parts = figures(replace(answer, gpus=(answer.gpus[0]._replace(memory=split),)))
    assert limit == 8
    assert sum(parts) == limit


def test_memory_that_the_lists_count_twice_is_subtracted() -> None:
    claims = [listed(1, 60 * GIB), listed(2, 60 * GIB)]
    answer = attribute(None, snapshot(gpu(0, claims, memory=memory(used_gib=79, reserved_gib=1))))
    assert "- OVERCOUNT" in render(answer)
    _, limit, measured, overcount, *others = figures(answer)
    assert measured - overcount + sum(others) == limit
    assert measured == 120 * 1024


def test_unreported_reserved_memory_is_a_dash() -> None:
    answer = attribute(None, snapshot(gpu(0, memory=memory(reserved_gib=None))))
    assert sections(render(answer))[2][1].split()[5] == "–"


def test_a_terminal_too_narrow_for_sums_has_none() -> None:
    assert "= MEASURED" in render(attribution(), width=70)
    assert "= MEASURED" not in render(attribution(), width=60)


def test_whole_units_add_up_to_the_rounded_sum() -> None:
    assert whole([5, 5, 5, 5], 10) == [1, 0, 1, 0]
    assert whole([14, -4, 0], 10) == [1, 0, 0]


# ---------------------------------------------------------------------------- workloads, times, marks


def test_the_title_has_version_host_time_and_driver() -> None:
    first = render(attribution(), width=120, host_name="node-\x1b1").splitlines()[0]
    assert first == f"otel-gpu {__version__}  node-\N{REPLACEMENT CHARACTER}1  2023-11-14T22:13:25Z  driver 570.124.06"


def test_marks_are_explained_if_there_are_any() -> None:
    legend = sections(render(attribution(), width=120))[-2]
    assert legend == [
        "█ measured  ▒ inferred  ░ unattributed  : reserved by the driver  · free",
        "≈ estimated  ~ inferred  – unknown, which is not zero",
        "INFERRED is memory that the driver does not list and evidence explains, with the confidence",
        "POWER is the mean of the last 5.0 s",
    ]
    assert "measured" not in render(attribute(None, snapshot()))


def test_the_reason_of_a_failed_gpu_is_printed_in_full_and_once() -> None:
    reason = "GPU is lost: " + "it fell off the bus " * 8
    by_gpu = SourceOutcome("nvml", SourceState.DEGRADED, f"GPU 1: {reason}", by_gpu=True)
    text = " ".join(
        render(attribute(None, snapshot(gpu(0), failed_gpu(1, reason), sources=[by_gpu])), width=80).split()
    )
    assert text.count(" ".join(reason.split())) == 1
    assert "GPU 1: failed: GPU is lost" in text


def test_a_simulated_host_does_not_refer_to_doctor() -> None:
    assert "doctor" in render(attribution())
    assert "doctor" not in render(attribution(), simulated=True)
