from __future__ import annotations

import json

import pytest

from otel_gpu.doctor.findings import Finding, Verdict, is_blind, report, to_json
from otel_gpu.export.text import Paint
from otel_gpu.version import __version__

PLAIN = Paint(enabled=False)


@pytest.mark.parametrize(("verdict", "blind"), [(Verdict.OK, False), (Verdict.DEGRADED, False), (Verdict.BLIND, True)])
def test_one_blind_finding_is_blindness_and_a_degraded_one_is_not(verdict: Verdict, blind: bool) -> None:
    assert is_blind([Finding("a", Verdict.OK, "fine"), Finding("b", verdict, "so so")]) is blind


def test_the_report_has_a_line_for_each_finding_and_the_fix_below() -> None:
    text = report(
        [Finding("nvml", Verdict.OK, "fine"), Finding("pid namespace", Verdict.BLIND, "private", "do this")], PLAIN
    )
    assert text == (
        "ok        nvml           fine\n"
        "blind     pid namespace  private\n"
        "                         fix: do this\n"
    )  # fmt: skip


def test_the_report_is_coloured_only_when_asked_for() -> None:
    one = [Finding("nvml", Verdict.BLIND, "no driver")]
    assert "\x1b[31mblind   \x1b[0m" in report(one, Paint(enabled=True))
    assert "\x1b" not in report(one, PLAIN)


def test_what_a_driver_says_cannot_act_on_the_terminal() -> None:
    text = report([Finding("nvml", Verdict.OK, "\x1b[2J\nok        proc  fine")], PLAIN)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 1


def test_on_a_terminal_what_was_found_is_wrapped_below_itself_and_a_fix_is_left_whole() -> None:
    one = [Finding("cri", Verdict.DEGRADED, "word " * 20, "curl " + "x" * 100)]
    *found, fix = report(one, PLAIN, width=60).splitlines()
    assert len(found) > 1
    assert all(len(line) <= 60 for line in found)
    assert all(line.startswith(" " * 15 + "word") for line in found[1:])
    assert fix == " " * 15 + "fix: curl " + "x" * 100
    assert len(report(one, PLAIN).splitlines()) == 2


def test_who_is_not_asked_is_faint_on_a_terminal() -> None:
    text = report([Finding("cri", Verdict.UNUSED, "not found")], Paint(enabled=True))
    assert "\x1b[2mcri  not found\x1b[0m" in text


def test_a_fix_cannot_act_on_the_terminal_either() -> None:
    assert "\x1b" not in report([Finding("cri", Verdict.DEGRADED, "x", "ls \x1b[2J")], PLAIN)


# ---------------------------------------------------------------------------- JSON


def test_the_json_has_the_worst_verdict_and_every_line_with_the_keys_that_are_promised() -> None:
    document = json.loads(
        to_json(
            [
                Finding("nvml", Verdict.OK, "fine"),
                Finding("cri", Verdict.UNUSED, "not found"),
                Finding("clock", Verdict.DEGRADED, "off …", "set it"),
            ]
        )
    )
    assert document == {
        "version": __version__,
        "verdict": "degraded",
        "findings": [
            {"subject": "nvml", "verdict": "ok", "found": "fine", "fix": None},
            {"subject": "cri", "verdict": "unused", "found": "not found", "fix": None},
            {"subject": "clock", "verdict": "degraded", "found": "off …", "fix": "set it"},
        ],
    }


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [
        ([Verdict.OK, Verdict.UNUSED], "ok"),
        ([Verdict.BLIND, Verdict.DEGRADED, Verdict.OK], "blind"),
        ([], "ok"),
    ],
)
def test_what_is_not_used_makes_nothing_worse(verdicts: list[Verdict], worst: str) -> None:
    assert json.loads(to_json([Finding("x", verdict, "x") for verdict in verdicts]))["verdict"] == worst


def test_the_json_is_ascii_whatever_a_driver_says() -> None:
    assert to_json([Finding("nvml", Verdict.OK, "\x1b[2J…")]).isascii()
