from __future__ import annotations

import itertools
import json
import logging
import os
import re
import threading
from datetime import UTC, datetime

import pytest

from otel_gpu.agent.sampling import StateLog
from otel_gpu.cli.logs import PATIENCE_S, notify, report_if_slow, report_times_s, set_up
from otel_gpu.config import LogFormat, LogLevel
from otel_gpu.model import SourceOutcome, SourceState

pytestmark = pytest.mark.usefixtures("own_logging")

log = logging.getLogger("otel_gpu.test")

NASTY = 'a "b"\n2030-01-01 level=error msg=forged \x1b[31m\u202e \ud800 \\'


def test_json_lines_have_time_level_logger_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(LogLevel.INFO, LogFormat.JSON)
    log.warning("%s", NASTY)
    record = json.loads(capsys.readouterr().err)
    assert {key: record[key] for key in ("level", "logger", "msg")} == {
        "level": "warning",
        "logger": "otel_gpu.test",
        "msg": NASTY,
    }
    assert record["time"].endswith("Z")
    age = datetime.now(UTC) - datetime.fromisoformat(record["time"])
    assert abs(age.total_seconds()) < 600


def test_logfmt_quotes_only_what_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(LogLevel.INFO, LogFormat.LOGFMT)
    log.info("ready")
    log.info("nvml is %s", "down")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(" level=info logger=otel_gpu.test msg=ready")
    assert second.endswith(' level=info logger=otel_gpu.test msg="nvml is down"')


@pytest.mark.parametrize(
    ("level", "logged"), [(LogLevel.DEBUG, 4), (LogLevel.INFO, 3), (LogLevel.WARNING, 2), (LogLevel.ERROR, 1)]
)
def test_the_level_limits_what_is_logged(level: LogLevel, logged: int, capsys: pytest.CaptureFixture[str]) -> None:
    set_up(level, LogFormat.LOGFMT)
    for say in (log.debug, log.info, log.warning, log.error):
        say("x")
    assert len(capsys.readouterr().err.splitlines()) == logged


def test_a_second_setup_replaces_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    for log_format in (LogFormat.LOGFMT, LogFormat.JSON):
        set_up(LogLevel.INFO, log_format)
    log.info("once")
    assert [json.loads(line)["msg"] for line in capsys.readouterr().err.splitlines()] == ["once"]


@pytest.mark.parametrize("log_format", LogFormat)
def test_a_traceback_that_is_logged_stays_within_its_line(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(LogLevel.DEBUG, log_format)
    log.debug("failed", exc_info=RuntimeError("boom"))
    (line,) = capsys.readouterr().err.splitlines()
    assert "RuntimeError: boom" in line


def test_an_invalid_log_call_prints_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(LogLevel.INFO, LogFormat.LOGFMT)
    log.info("%d apples", "two")
    log.info("still here")
    assert "Traceback" not in (err := capsys.readouterr().err)
    assert 'msg="still here"' in err


# ---------------------------------------------------------------------------- reading it back

HOSTILE = [
    "",
    "plain",
    "two words",
    'say "hi"',
    "line\nlevel=error msg=forged",
    "\r\n\t\0\x1b[2J\x1b]0;title\x07",
    "back\\slash\\",
    "a=b c='d'",
    *("a=b", 'a"b', "a'b", "a\\b", "a\tb", "é"),
    "\u202eevil\u2028\x85",
    "\ud800",
    "模型 🚀",
    "null",
    "12",
    "x" * 10_000,
]


def parse_logfmt(line: str) -> dict[str, object]:
    """What a reader of logfmt makes of a line: words between blanks, or strings in quotes with JSON's escapes."""
    fields: dict[str, object] = {}
    decoder = json.JSONDecoder()
    at = 0
    while at < len(line):
        key, _, rest = line[at:].partition("=")
        assert re.fullmatch(r"[a-z_]+", key), key
        at += len(key) + 1
        if rest.startswith('"'):
            fields[key], length = decoder.raw_decode(rest)
        else:
            word = rest.partition(" ")[0]
            fields[key], length = word, len(word)
        at += length
        assert line[at : at + 1] in ("", " "), line[at:]
        at += 1
    return fields


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:20])
def test_what_is_logged_reads_back_the_same_in_both_formats(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"source": text, "state": "degraded", "count": 3, "share": 0.5, "first": True, "reason": None}
    for log_format, parse in ((LogFormat.JSON, json.loads), (LogFormat.LOGFMT, parse_logfmt)):
        set_up(LogLevel.INFO, log_format)
        log.warning("%s", text, extra={"fields": fields})
        out, err = capsys.readouterr()
        line = err.removesuffix("\n")
        assert (out, err) == ("", f"{line}\n")
        assert line.isascii()
        assert line.isprintable()
        found = parse(line)
        assert list(found)[:4] == ["time", "level", "logger", "msg"]
        assert (found["msg"], found["source"], found["state"]) == (text, text, "degraded")
        others = [found[key] for key in ("count", "share", "first", "reason")]
        assert others == ([3, 0.5, True, None] if log_format is LogFormat.JSON else ["3", "0.5", "true", "null"])


@pytest.mark.parametrize("log_format", LogFormat)
def test_a_field_cannot_replace_a_standard_field(log_format: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    set_up(LogLevel.INFO, log_format)
    log.info("said", extra={"fields": {"level": "error", "msg": "forged", "value": float("nan")}})
    line = capsys.readouterr().err
    found = json.loads(line) if log_format is LogFormat.JSON else parse_logfmt(line.rstrip("\n"))
    assert (found["level"], found["msg"], found["value"]) == ("info", "said", "nan")


def test_a_change_of_a_sources_state_has_source_state_and_reason_as_fields(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(LogLevel.INFO, LogFormat.JSON)
    states = StateLog()
    for state, reason in ((SourceState.DEGRADED, "hidepid"), (SourceState.DEGRADED, "hidepid"), (SourceState.OK, None)):
        states.observe((SourceOutcome("procfs", state, reason),))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line["source"], line["state"], line["reason"]) for line in lines] == [
        ("warning", "procfs", "degraded", "hidepid"),
        ("info", "procfs", "ok", None),
    ]


def test_libraries_that_log_their_requests_are_limited_to_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(LogLevel.DEBUG, LogFormat.LOGFMT)
    logging.getLogger("urllib3.connectionpool").debug("POST /v1/metrics?key=secret")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("log_format", "chosen", "said"),
    [
        (LogFormat.LOGFMT, False, "one\ntwo\n"),
        (LogFormat.LOGFMT, True, " level=info logger=otel_gpu.cli.logs msg=three urls=a,b\n"),
        (
            LogFormat.JSON,
            False,
            '"level": "info", "logger": "otel_gpu.cli.logs", "msg": "three", "urls": ["a", "b"]}\n',
        ),
    ],
)
def test_a_notice_is_a_record_for_programs_and_text_for_people(
    log_format: LogFormat, chosen: bool, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "")  # so that it is as it was afterwards
    monkeypatch.delenv("GRPC_VERBOSITY")
    set_up(LogLevel.INFO, log_format, chosen=chosen)
    notify("one\ntwo\n", "three", {"urls": ["a", "b"]})
    message = capsys.readouterr().err
    assert message.endswith(said)
    assert (message == said) is (said == "one\ntwo\n")
    assert ("GRPC_VERBOSITY" in os.environ) is (message != said)  # whose core would write lines of its own


def test_before_logging_is_set_up_a_notice_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers[:] = []
    notify("text\n", "record", {})
    assert capsys.readouterr().err == "text\n"


# ---------------------------------------------------------------------------- progress


def test_a_fast_step_has_no_message() -> None:
    said: list[str] = []
    with report_if_slow("reading GPUs", said.append):
        pass
    assert said == []


def test_a_slow_step_is_reported_until_its_end() -> None:
    said: list[str] = []
    enough = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            enough.set()

    with report_if_slow("reading GPUs", say, patience_s=0.001):
        assert enough.wait(30)
    assert set(said) == {"reading GPUs … 0 s"}


def test_no_thread_is_left_after_an_error() -> None:
    with pytest.raises(KeyError), report_if_slow("reading", str, patience_s=0.001):
        raise KeyError("x")
    assert not [thread for thread in threading.enumerate() if thread.name == "otel-gpu-progress"]


def test_ten_minutes_of_a_hung_driver_are_a_dozen_lines() -> None:
    moments = list(itertools.takewhile(lambda moment_s: moment_s <= 600, report_times_s(PATIENCE_S)))
    assert moments[:8] == [2, 4, 8, 16, 32, 64, 124, 184]
    assert len(moments) < 16
