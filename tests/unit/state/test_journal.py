"""Journals: complete, torn at the end, or not to be trusted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from otel_gpu.model import SourceOutcome, SourceState
from otel_gpu.state.journal import JOURNAL_FORMAT, Journal, JournalHead, cycle_line, head_line, line, parse_journal
from tests.state_dirs import AGENT, BOOT, OPTIONS
from tests.unit.state.lives import world

HEAD = JournalHead(JOURNAL_FORMAT, AGENT, BOOT, 5, None, new_driver=False, options=OPTIONS)
WHOLE = head_line(7, HEAD) + line(8, "[1]") + line(9, "[2]")


def parsed(content: bytes) -> Journal:
    journal = parse_journal(content)
    assert journal is not None
    return journal


def test_a_journal_is_read_as_it_was_written() -> None:
    journal = parsed(WHOLE)
    assert (journal.base, journal.last, journal.lines, journal.torn) == (7, 9, (b"[1]", b"[2]"), False)
    assert journal.head() == HEAD


def test_a_journal_that_is_cut_anywhere_has_its_complete_lines() -> None:
    for length in range(len(WHOLE)):
        content = WHOLE[:length]
        journal = parse_journal(content)
        ends = content.count(b"\n")
        if ends == 0:
            assert journal is None
        else:
            assert journal is not None
            assert len(journal.lines) == ends - 1
            assert journal.torn == (not content.endswith(b"\n"))


def test_a_flipped_bit_anywhere_is_detected() -> None:
    whole = parsed(WHOLE)
    for place in range(len(WHOLE)):
        for bit in range(8):
            damaged = bytearray(WHOLE)
            damaged[place] ^= 1 << bit
            try:
                journal = parse_journal(bytes(damaged))
            except ValueError:
                continue
            # Without its line feed the last line looks torn.
            assert journal is None or (place == len(WHOLE) - 1 and journal.lines == whole.lines[:1] and journal.torn)


@pytest.mark.parametrize(
    "content",
    [
        head_line(7, HEAD) + line(9, "[2]"),
        head_line(7, HEAD) + line(8, "[1]") + line(8, "[1]"),
        head_line(7, HEAD) + line(9, "[2]") + line(8, "[1]"),
        b"\n" + WHOLE,
        WHOLE + b"\n",
        b"a foreign file\n",
        b"{}\n",
    ],
    ids=["missing", "twice", "swapped", "before", "after", "foreign", "json"],
)
def test_lines_that_do_not_follow_each_other_are_not_trusted(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"line"):
        parse_journal(content)


def test_a_cycle_is_read_without_a_field_that_is_newer_than_the_journal() -> None:
    """As an earlier version wrote it: without the counts of unreadable processes at its end."""
    counted = replace(world(0), unreadable={"timed_out": 1})
    *_, text = cycle_line(8, counted).decode("ascii").strip().split(" ", 2)
    values = json.loads(text)
    assert values.pop() == [], "no rule depends on them"
    journal = parsed(head_line(7, HEAD) + line(8, json.dumps(values)))
    assert list(journal.snapshots(0)) == [replace(world(0), sources=())]


def test_cycles_are_read_without_the_outcomes_of_sources_and_an_invalid_line_is_refused() -> None:
    outcome = SourceOutcome("nvml", SourceState.OK)
    cycles = [world(0), replace(world(5), sources=(outcome,)), replace(world(5), wall_ns=1)]
    lines = (cycle_line(number, cycle) for number, cycle in enumerate(cycles, 8))
    journal = parsed(head_line(7, HEAD) + b"".join(lines))
    expected = [replace(cycle, sources=()) for cycle in cycles]
    assert [list(journal.snapshots(after)) for after in (0, 7, 8, 10)] == [expected, expected, expected[1:], []]
    with pytest.raises(ValueError, match="expected 12 values"):
        list(parsed(WHOLE).snapshots(0))


@pytest.mark.parametrize("text", ["[3]", "[2]", "[]", "{}", "1", '["1"]', "[1]", "[", "[1,2,3,4,5,6]"])
def test_another_format_is_refused(text: str) -> None:
    journal = parsed(line(0, text))
    with pytest.raises(ValueError, match=r"."):
        journal.head()
