from __future__ import annotations

import pytest

from otel_gpu.top.places import in_words, place_of
from otel_gpu.top.plain import Plain
from tests.unit.top.places_cases import PLACES


@pytest.mark.parametrize(("parts", "words"), PLACES, ids=[words for _, words in PLACES])
def test_places_are_in_the_order_of_gpus_each_once_and_runs_are_short(
    parts: list[tuple[int | None, str | None]], words: str
) -> None:
    assert in_words([place_of(Plain({"index": index, "profile": profile})) for index, profile in parts]) == words


def test_one_place_is_written_as_among_others() -> None:
    assert str(place_of(Plain({"index": 3, "profile": "1g.10gb"}))) == "3 1g.10gb"
    assert str(place_of(Plain({"index": None, "profile": None}))) == "?"
