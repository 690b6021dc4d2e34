from __future__ import annotations

import pytest

from otel_gpu.top.terminal import DOWN, ENTER, ESCAPE, FIRST, LAST, PAGE_DOWN, UP, Keys


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1bOB", [UP, DOWN]),
        (b"\x1b[6~\x1b[H\x1b[4~", [PAGE_DOWN, FIRST, LAST]),
        (b"\r\n", [ENTER, ENTER]),
        ("ü日".encode(), ["ü", "日"]),
        (b"\x1b[1;5Cx\x1b[200~y", ["x", "y"]),
        (b"\x00\x01\x1d", []),
        (b"\x1bx", [ESCAPE, "x"]),
        (b"\xff\xfe", ["\N{REPLACEMENT CHARACTER}"] * 2),
    ],
    ids=["a letter", "arrows", "pages", "enter", "letters of others", "unknown ones", "controls", "alt", "no text"],
)
def test_input_becomes_keys(sent: bytes, keys: list[str]) -> None:
    assert Keys().feed(sent) == keys


@pytest.mark.parametrize("sent", [b"a\x1b[5~", "日".encode(), b"\x1bOA\x1b[B"])
def test_keys_do_not_depend_on_how_the_input_is_split(sent: bytes) -> None:
    keys = Keys()
    assert [key for byte in sent for key in keys.feed(bytes([byte]))] == Keys().feed(sent)


def test_an_escape_without_a_sequence_is_the_escape_key() -> None:
    keys = Keys()
    assert (keys.feed(b"\x1b"), keys.waiting) == ([], True)
    assert (keys.flush(), keys.waiting) == ([ESCAPE], False)
    assert keys.flush() == []


def test_an_endless_sequence_is_not_stored() -> None:
    keys = Keys()
    for _ in range(1000):
        keys.feed(b"\x1b[" + b"1;" * 20)
        assert len(keys._rest) <= 32
