"""Lines of a journal: whole, torn at the end, or not to be trusted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.state.codec import to_json
from otel_gpu.state.cycle_text import CycleText
from otel_gpu.state.journal import JOURNAL_FORMAT, Journal, JournalHead, head_line, line, parse_journal
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


def test_cut_anywhere_it_has_the_lines_that_are_whole() -> None:
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


def test_a_bit_that_fell_over_anywhere_is_found() -> None:
    whole = parsed(WHOLE)
    for place in range(len(WHOLE)):
        for bit in range(8):
            damaged = bytearray(WHOLE)
            damaged[place] ^= 1 << bit
            try:
                journal = parse_journal(bytes(damaged))
            except ValueError:
                continue
            # The end of the last line looks like one that was torn.
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


def test_its_cycles_are_read_with_their_numbers_and_a_line_that_is_none_is_refused() -> None:
    text, cycles = CycleText(), [world(0), world(5), replace(world(5), wall_ns=1)]
    lines = []
    for number, cycle in enumerate(cycles, 8):
        lines.append(line(number, text.of(cycle)))
        text.written(number)
    found = list(parsed(head_line(7, HEAD) + b"".join(lines)).snapshots())
    assert found == [(number, replace(cycle, sources=())) for number, cycle in enumerate(cycles, 8)]
    with pytest.raises(ValueError, match="values where"):
        list(parsed(WHOLE).snapshots())


def test_a_journal_of_the_format_before_this_is_read() -> None:
    """Every line of it is in full, as the first of each file is now."""
    journal = parsed(head_line(0, replace(HEAD, format=1)) + line(1, to_json(world(0))))
    assert journal.head().format == 1
    assert [cycle for _, cycle in journal.snapshots()] == [world(0)]


@pytest.mark.parametrize("text", ["[3]", "[2]", "[]", "{}", "1", '["1"]', "[1]", "[", "[1,2,3,4,5,6]"])
def test_another_format_is_refused(text: str) -> None:
    journal = parsed(line(0, text))
    with pytest.raises(ValueError, match=r"."):
        journal.head()
