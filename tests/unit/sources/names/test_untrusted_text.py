"""Text from outside, fit to be told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.sources.names.untrusted_text import MAX_CHARS, sanitize


@pytest.mark.parametrize("text", ["web", 'a "quoted" name', "two\nlines", "🚀 ünïcode", "<b>bold</b>", "x" * MAX_CHARS])
def test_what_can_be_told_is_told_as_it_is(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.parametrize("nothing", [None, "", 7, True, [], {}, b"bytes"])
def test_what_is_no_text_is_nothing(nothing: object) -> None:
    assert sanitize(nothing) is None


def test_what_is_too_long_is_cut_and_shows_it() -> None:
    assert sanitize("y" * 10_240) == "y" * (MAX_CHARS - 1) + "…"


@given(st.text(st.characters(exclude_categories=())))
def test_whatever_it_is_it_can_be_encoded_and_has_an_end(text: str) -> None:
    found = sanitize(text)
    assert (found is None) == (text == "")
    assert found is None or len(found.encode("utf-8")) <= 4 * MAX_CHARS
