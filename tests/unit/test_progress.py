from __future__ import annotations

import itertools
import threading

import pytest

from otel_gpu.progress import PATIENCE_S, moments_s, told_if_long


def test_what_is_done_at_once_says_nothing() -> None:
    said: list[str] = []
    with told_if_long("reading GPUs", said.append):
        pass
    assert said == []


def test_what_takes_long_is_told_again_and_again_until_its_end() -> None:
    said: list[str] = []
    enough = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            enough.set()

    with told_if_long("reading GPUs", say, patience_s=0.001):
        assert enough.wait(30)
    assert set(said) == {"reading GPUs … 0 s"}


def test_nothing_is_left_behind_however_it_ends() -> None:
    with pytest.raises(KeyError), told_if_long("reading", str, patience_s=0.001):
        raise KeyError("x")
    assert not [thread for thread in threading.enumerate() if thread.name == "otel-gpu-progress"]


def test_ten_minutes_of_a_driver_that_hangs_are_a_dozen_lines() -> None:
    moments = list(itertools.takewhile(lambda moment_s: moment_s <= 600, moments_s(PATIENCE_S)))
    assert moments[:8] == [2, 4, 8, 16, 32, 64, 124, 184]
    assert len(moments) < 16
