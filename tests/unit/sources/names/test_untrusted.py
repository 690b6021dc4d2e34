"""Text from outside is made exportable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.sources.names.untrusted import MAX_NAME_BYTES, MAX_TEXT_BYTES, change_of, sanitize


@pytest.mark.parametrize(
    "text",
    [
        "web",
        'a "quoted" name',
        "two\nlines",
        "🚀 ünïcode",
        "<b>bold</b>",
        "x" * MAX_TEXT_BYTES,
        "é" * (MAX_TEXT_BYTES // 2),
    ],
)
def test_valid_text_is_unchanged(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.parametrize("nothing", [None, "", 7, True, [], {}, b"bytes"])
def test_other_values_are_none(nothing: object) -> None:
    assert sanitize(nothing) is None


@pytest.mark.parametrize("max_bytes", [MAX_TEXT_BYTES, MAX_NAME_BYTES])
@pytest.mark.parametrize("character", ["y", "é", "€", "🚀"], ids=["1 byte", "2 bytes", "3 bytes", "4 bytes"])
@pytest.mark.parametrize("times", [1, 100])
def test_long_text_is_cut_in_bytes_between_two_characters(character: str, max_bytes: int, times: int) -> None:
    fitting = character * (max_bytes // len(character.encode()))
    assert sanitize(fitting, max_bytes) == fitting
    found = sanitize(fitting + character * times, max_bytes)
    assert found is not None
    whole, end = found[:-1], found[-1]
    assert (end, set(whole)) == ("…", {character})
    assert max_bytes - len(character.encode()) < len(found.encode()) <= max_bytes


@given(st.text(st.characters(exclude_categories=()), max_size=400))
def test_any_text_is_encodable_and_bounded_and_a_change_is_described(text: str) -> None:
    found = sanitize(text)
    assert (found is None) == (text == "")
    if found is not None:
        assert len(found.encode("utf-8")) <= MAX_TEXT_BYTES
        assert (change_of(text, found) is None) == (found == text)


def test_a_change_says_what_is_exported() -> None:
    assert change_of("y" * 10_240, sanitize("y" * 10_240) or "") == "has 10,240 bytes; only the first 125 are exported"
    invalid = "is not valid Unicode; invalid characters are exported as question marks"
    assert change_of("a\ud800", sanitize("a\ud800") or "") == invalid
