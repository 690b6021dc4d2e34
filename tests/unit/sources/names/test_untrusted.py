"""Text from outside is made exportable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.sources.names.untrusted import MAX_CHARS, sanitize


@pytest.mark.parametrize("text", ["web", 'a "quoted" name', "two\nlines", "🚀 ünïcode", "<b>bold</b>", "x" * MAX_CHARS])
def test_valid_text_is_unchanged(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.parametrize("nothing", [None, "", 7, True, [], {}, b"bytes"])
def test_other_values_are_none(nothing: object) -> None:
    assert sanitize(nothing) is None


def test_long_text_is_cut_with_an_ellipsis() -> None:
    assert sanitize("y" * 10_240) == "y" * (MAX_CHARS - 1) + "…"


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_encodable_and_bounded(text: str) -> None:
    found = sanitize(text)
    assert (found is None) == (text == "")
    assert found is None or len(found.encode("utf-8")) <= 4 * MAX_CHARS
