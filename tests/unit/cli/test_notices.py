from __future__ import annotations

import itertools
import threading

import pytest

from otel_gpu.cli.notices import PATIENCE_S, report_if_slow, report_times_s


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
