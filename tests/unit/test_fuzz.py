"""The driver of ``make fuzz``: failures are reported with a command that reproduces them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.fuzz.__main__ import TARGETS, fuzz, generator, main
from tests.fuzz.target import Target, mutated, mutated_json


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_few_inputs_of_every_target_are_accepted_or_refused(
    target: Target[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz(target, 0, range(150), print) == 0, capsys.readouterr().out


def test_exceptions_and_violations_are_reported_with_the_input_and_a_command_to_reproduce_it() -> None:
    def violation(data: bytes) -> str | None:
        if data == b"2":
            raise KeyError("lost")
        return "it is odd" if data == b"3" else None

    reported: list[str] = []
    numbers = {generator(7, number).random(): number for number in range(10)}
    target = Target("digits", lambda rng: str(numbers[rng.random()]).encode(), violation)
    assert fuzz(target, 7, range(10), reported.append) == 2
    assert "digits: raised KeyError('lost') at test_fuzz.py:" in reported[0]
    assert "input  b'2'" in reported[0]
    assert "python -m tests.fuzz --only digits --seed 7 --from 2 --inputs 1" in reported[0]
    assert "it is odd" in reported[1]
    assert reported[2] == "digits: 10 inputs, 2 failures\n"


def test_an_input_follows_from_seed_and_number_alone() -> None:
    for target in TARGETS:
        assert target.make(generator(1, 5)) == target.make(generator(1, 5)), target.name
        assert len({target.make(generator(1, number)) for number in range(50)}) > 20, target.name


def test_one_target_alone_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "proc-fd", "--inputs", "20", "--seed", "3"]) == 0
    assert capsys.readouterr().out == "proc-fd: 20 inputs, 0 failures\n"


@pytest.mark.parametrize("inputs", ["0", "-1", "many", "1.5", ""])
def test_a_run_without_inputs_is_refused_in_one_line(inputs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([f"--inputs={inputs}"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "--inputs" in err
    assert "whole numbers from 1 on" in err


def test_mutations_keep_some_examples_whole_and_change_others() -> None:
    made = [mutated(random.Random(number), [b"example"]) for number in range(200)]
    assert 10 < made.count(b"example") < 150
    documents = [mutated_json(random.Random(number), [{"a": [1]}]) for number in range(200)]
    assert 10 < documents.count(b'{"a": [1]}') < 150
