from __future__ import annotations

import json

import pytest

from otel_gpu.doctor.findings import Finding, Verdict, is_blind, to_json, to_text
from otel_gpu.version import __version__
from otel_gpu.view.terminal import Paint

PLAIN = Paint(enabled=False)


@pytest.mark.parametrize(("verdict", "blind"), [(Verdict.OK, False), (Verdict.DEGRADED, False), (Verdict.BLIND, True)])
def test_is_blind_if_one_finding_is_blind(verdict: Verdict, blind: bool) -> None:
    assert is_blind([Finding("a", Verdict.OK, "fine"), Finding("b", verdict, "some")]) is blind


def test_each_finding_is_a_line_with_its_fix_below() -> None:
    text = to_text(
        [Finding("nvml", Verdict.OK, "fine"), Finding("pid namespace", Verdict.BLIND, "private", "do this")], PLAIN
    )
    assert text == (
        "ok        nvml           fine\n"
        "blind     pid namespace  private\n"
        "                         fix: do this\n"
    )  # fmt: skip


def test_the_text_is_coloured_only_on_request() -> None:
    one = [Finding("nvml", Verdict.BLIND, "no driver")]
    assert "\x1b[31mblind   \x1b[0m" in to_text(one, Paint(enabled=True))
    assert "\x1b" not in to_text(one, PLAIN)


def test_a_finding_cannot_send_control_characters_to_the_terminal() -> None:
    text = to_text([Finding("nvml", Verdict.OK, "\x1b[2J\nok        proc  fine")], PLAIN)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 1


def test_a_finding_is_wrapped_to_the_width_and_a_fix_is_not() -> None:
    one = [Finding("cri", Verdict.DEGRADED, "word " * 20, "curl " + "x" * 100)]
    *found, fix = to_text(one, PLAIN, width=60).splitlines()
    assert len(found) > 1
    assert all(len(line) <= 60 for line in found)
    assert all(line.startswith(" " * 15 + "word") for line in found[1:])
    assert fix == " " * 15 + "fix: curl " + "x" * 100
    assert len(to_text(one, PLAIN).splitlines()) == 2


def test_an_unused_finding_is_dim_on_a_terminal() -> None:
    text = to_text([Finding("cri", Verdict.UNUSED, "not found")], Paint(enabled=True))
    assert "\x1b[2mcri  not found\x1b[0m" in text


def test_a_fix_cannot_send_control_characters_to_the_terminal() -> None:
    assert "\x1b" not in to_text([Finding("cri", Verdict.DEGRADED, "x", "ls \x1b[2J")], PLAIN)


# ---------------------------------------------------------------------------- JSON


def test_the_json_has_the_worst_verdict_and_every_finding() -> None:
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
def test_unused_does_not_count_for_the_worst_verdict(verdicts: list[Verdict], worst: str) -> None:
    assert json.loads(to_json([Finding("x", verdict, "x") for verdict in verdicts]))["verdict"] == worst


def test_the_json_is_ascii() -> None:
    assert to_json([Finding("nvml", Verdict.OK, "\x1b[2J…")]).isascii()
