from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

import pytest

from otel_gpu.config import LogFormat, LogLevel
from otel_gpu.logs import set_up

pytestmark = pytest.mark.usefixtures("own_logging")

log = logging.getLogger("otel_gpu.test")

NASTY = 'a "b"\n2030-01-01 level=error msg=forged \x1b[31m\u202e \ud800 \\'


@pytest.mark.parametrize("log_format", LogFormat)
@pytest.mark.parametrize("message", ["", "plain", NASTY])
def test_a_record_is_one_line_of_printable_ascii_on_stderr(
    log_format: LogFormat, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(LogLevel.INFO, log_format)
    log.warning("%s", message)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    assert err[:-1].isascii()
    assert err[:-1].isprintable()


def test_json_lines_carry_time_level_logger_and_message_unharmed(capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize("word", ["a=b", 'a"b', "a'b", "a\\b", "a\tb", "é", ""])
def test_logfmt_values_read_the_same_as_json_strings(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up(LogLevel.INFO, LogFormat.LOGFMT)
    log.info("%s", word)
    _, _, value = capsys.readouterr().err.rstrip("\n").partition(" msg=")
    assert json.loads(value) == word


@pytest.mark.parametrize(
    ("level", "logged"), [(LogLevel.DEBUG, 4), (LogLevel.INFO, 3), (LogLevel.WARNING, 2), (LogLevel.ERROR, 1)]
)
def test_the_level_says_how_much_is_logged(level: LogLevel, logged: int, capsys: pytest.CaptureFixture[str]) -> None:
    set_up(level, LogFormat.LOGFMT)
    for say in (log.debug, log.info, log.warning, log.error):
        say("x")
    assert len(capsys.readouterr().err.splitlines()) == logged


def test_setting_up_again_replaces_what_was_set_up(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_log_call_that_is_wrong_in_itself_prints_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(LogLevel.INFO, LogFormat.LOGFMT)
    log.info("%d apples", "two")
    log.info("still here")
    assert "Traceback" not in (err := capsys.readouterr().err)
    assert 'msg="still here"' in err
