from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.top import terminal as keys
from otel_gpu.top.navigation import Filter, Navigation, Overlay, parse_filter
from otel_gpu.view.model import View
from tests.unit.top.views import crowd, row, unpriced

SHOWN = crowd(
    row("beta", 20, sm=0.5, power=100.0, energy=5, idle=1.0),
    row("Alpha", 30, sm=0.1, power=300.0, energy=9, idle=3.0),
    row("gamma", None),
    row("delta", 10, sm=0.9, power=200.0, energy=1, idle=2.0, processes=2),
)


def pressed(*presses: str, shown: View = SHOWN) -> Navigation:
    navigation = Navigation()
    for key in presses:
        navigation.press(key, shown)
    return navigation


def titles(navigation: Navigation, shown: View = SHOWN) -> list[str]:
    return [workload.name for workload in navigation.workloads(shown)]


@pytest.mark.parametrize(
    ("presses", "order"),
    [
        ((), ["Alpha", "beta", "delta", "gamma"]),
        (("s",), ["delta", "beta", "Alpha", "gamma"]),
        (("w",), ["Alpha", "delta", "beta", "gamma"]),
        (("e",), ["Alpha", "beta", "delta", "gamma"]),
        (("i",), ["Alpha", "delta", "beta", "gamma"]),
        (("n",), ["Alpha", "beta", "delta", "gamma"]),
        (("n", "n"), ["gamma", "delta", "beta", "Alpha"]),
        (("m",), ["delta", "beta", "Alpha", "gamma"]),
        (("s", "s"), ["Alpha", "beta", "delta", "gamma"]),
        (("w", "r"), ["beta", "delta", "Alpha", "gamma"]),
        ((">",), ["delta", "beta", "Alpha", "gamma"]),
        (("<", "<"), ["Alpha", "beta", "delta", "gamma"]),
        (("<", "<", "<", "<", "<"), ["Alpha", "beta", "delta", "gamma"]),
    ],
    ids=str,
)
def test_a_key_sorts_by_a_column_and_again_reverses_with_unknown_values_last(
    presses: Sequence[str], order: list[str]
) -> None:
    assert titles(pressed(*presses)) == order


def test_equal_values_are_in_the_order_of_names_in_both_directions() -> None:
    shown = crowd(row("b", 5), row("a", 5), row("c", 5))
    assert titles(pressed(shown=shown), shown) == titles(pressed("m", shown=shown), shown) == ["a", "b", "c"]


def test_gpus_are_in_the_order_of_their_numbers() -> None:
    places = {"ten": "000000010 ", "two": "000000002 ", "part": "000000002 1g.10gb"}
    shown = crowd(*(row(name, 5, place=place) for name, place in places.items()))
    assert titles(pressed("g", shown=shown), shown) == ["two", "part", "ten"]
    assert titles(pressed("g", "g", shown=shown), shown) == ["ten", "part", "two"]


def test_without_prices_there_is_no_order_by_cost() -> None:
    without = unpriced(SHOWN)
    assert pressed("c", shown=without).order.name == "memory"
    assert pressed("c").order.name == "cost"
    assert pressed(*">>>>>>>>", shown=without).order.name == "idle"


def test_when_the_sorted_column_disappears_the_order_is_by_memory() -> None:
    navigation, without = pressed("c", "c"), unpriced(SHOWN)
    assert titles(navigation, without) == ["Alpha", "beta", "delta", "gamma"]
    assert (navigation.order.name, navigation.descending) == ("memory", True)


# ---------------------------------------------------------------------------- the filter


def test_a_filter_applies_while_it_is_typed_and_ignores_case() -> None:
    navigation = pressed("/", "A", "L")
    assert navigation.typing
    assert titles(navigation) == ["Alpha"]
    navigation.press(keys.BACKSPACE, SHOWN)
    navigation.press(keys.BACKSPACE, SHOWN)
    assert len(titles(navigation)) == 4


def test_keys_of_commands_are_letters_while_a_filter_is_typed() -> None:
    navigation = pressed("/", "q", "m", " ", "h")
    assert (navigation.filter, navigation.wants_to_quit, navigation.overlay, navigation.frozen) == (
        "qm h",
        False,
        None,
        None,
    )


def test_enter_keeps_the_filter_and_escape_clears_it() -> None:
    kept = pressed("/", "l", "t", "a", keys.ENTER)
    assert not kept.typing
    assert titles(kept) == ["delta"]
    kept.press(keys.ESCAPE, SHOWN)
    assert len(titles(kept)) == 4
    assert pressed("/", "t", keys.ESCAPE).filter == ""


@pytest.mark.parametrize(("words", "found"), [("team", 4), ("IMAGE:1 bet", 1), ("container absent", 0), ("  ", 4)])
def test_every_word_of_a_filter_must_match(words: str, found: int) -> None:
    assert len(titles(pressed("/", *words, keys.ENTER))) == found


def test_a_filter_has_a_maximum_length() -> None:
    assert len(pressed("/", *"x" * 500).filter) == 200


@pytest.mark.parametrize(
    ("text", "gpus", "words"),
    [
        ("gpu 3", {3}, ()),
        ("GPU3", {3}, ()),
        ("team  gpu 1 busy gpu10", {1, 10}, ("team", "busy")),
        ("gpu", set(), ("gpu",)),
        ("gpu 3g.40gb", set(), ("gpu", "3g.40gb")),
        ("mygpu 3", set(), ("mygpu", "3")),
        ("gpu 9999999999", set(), ("gpu", "9999999999")),
        ("  ", set(), ()),
    ],
)
def test_a_gpu_is_named_by_its_index_and_the_rest_are_words(text: str, gpus: set[int], words: tuple[str, ...]) -> None:
    assert parse_filter(text) == Filter(frozenset(gpus), words)


CASES = json.loads((Path(__file__).parents[2] / "filter_cases.json").read_text(encoding="utf-8"))
"""The page's filter is tested with them too: tests/real/test_page_real.py."""


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["filter"])
def test_a_filter_matches_as_on_the_page(case: dict[str, Any]) -> None:
    found = CASES["workload"]
    workload = row("vllm-chat")._replace(id=found["id"], gpus=tuple(found["gpus"]), words=found["words"])
    assert parse_filter(case["filter"]).matches(workload) is case["matches"]


def test_a_filter_for_a_gpu_matches_no_other_digits() -> None:
    rows = [row(f"job-{index}3", index)._replace(gpus=(index,), id="3" * 64) for index in (0, 1, 3, 10)]

    def found(text: str) -> list[int]:
        return [each.gpus[0] for each in rows if parse_filter(text).matches(each)]

    assert [found(f"gpu {index}") for index in (0, 1, 2, 3, 10)] == [[0], [1], [], [3], [10]]
    assert found("gpu1") == [1]
    assert found("gpu 1 gpu 3") == []
    assert found("gpu") == [0, 1, 3, 10]  # while "gpu 1" is typed


def test_an_id_matches_at_its_beginning_only() -> None:
    hashed = row("vllm")._replace(id="a1b2c3" + "d" * 58)
    assert parse_filter("A1B2").matches(hashed)
    assert parse_filter(hashed.id).matches(hashed)
    assert not parse_filter("b2").matches(hashed)
    assert not parse_filter("dd").matches(hashed)


# ---------------------------------------------------------------------------- the selected line


def selected(navigation: Navigation, shown: View = SHOWN) -> str:
    lines = navigation.lines(shown)
    return lines[navigation.position(lines)].key


def test_the_selection_follows_the_workload() -> None:
    navigation = pressed("down")
    assert selected(navigation).endswith("beta")
    navigation.press("n", SHOWN)
    navigation.press("n", SHOWN)
    assert selected(navigation).endswith("beta")


def test_when_the_selected_workload_ends_the_next_one_is_selected() -> None:
    navigation = pressed("down", "down")
    assert selected(navigation).endswith("delta")
    without = crowd(*(each for each in SHOWN.workloads if each.name != "delta"))
    assert selected(navigation, without).endswith("gamma")
    assert navigation.lines(crowd()) == []
    assert navigation.position([]) == 0


def test_the_selection_stops_at_the_ends() -> None:
    assert selected(pressed("up", "k", keys.PAGE_UP)).endswith("Alpha")
    assert selected(pressed(keys.LAST, "j", keys.DOWN)).endswith("gamma")
    assert selected(pressed(keys.LAST, keys.FIRST)).endswith("Alpha")


def test_an_opened_workload_shows_its_names_and_processes_until_it_is_closed() -> None:
    navigation = pressed("down", "down", "p")
    inside = [line for line in navigation.lines(SHOWN) if line.workload.name == "delta"]
    details = [line.detail for line in inside if line.detail is not None]
    figures = ["State", "Memory", "SM", "Power", "Energy", "Idle", "Cost"]
    assert [each.name for each in details] == ["Image", *figures, "GPU 0"]
    assert [line.process.cells[0].text for line in inside if line.process is not None] == ["1", "2"]
    assert len(navigation.lines(SHOWN)) == 3 + len(inside)
    for _ in inside[1:]:
        navigation.press("down", SHOWN)
    navigation.press(keys.ENTER, SHOWN)  # on a process: that closes what it stands in
    assert len(navigation.lines(SHOWN)) == 4
    assert selected(navigation).endswith("delta")


def test_an_ended_workload_is_no_longer_open() -> None:
    navigation = pressed("p")
    assert navigation.is_open(SHOWN.workloads[1])
    navigation.lines(crowd())
    assert not navigation.is_open(SHOWN.workloads[1])


# ---------------------------------------------------------------------------- the rest


def test_space_freezes_and_continues() -> None:
    navigation, later = pressed(" "), crowd(row("later"))
    assert navigation.shown(later) is SHOWN
    navigation.press(" ", later)
    assert navigation.shown(later) is later


def test_any_key_closes_help_and_q_quits_only_then() -> None:
    assert pressed("?").overlay is Overlay.HELP
    closed = pressed("?", "q")
    assert (closed.overlay, closed.wants_to_quit) == (None, False)
    assert pressed("?", "q", "q").wants_to_quit


def test_problems_and_help_replace_each_other() -> None:
    assert pressed("t").overlay is Overlay.PROBLEMS
    assert pressed("t", "h").overlay is Overlay.HELP
    assert pressed("t", "t").overlay is None


def test_before_the_first_view_only_help_and_quit_work() -> None:
    navigation = Navigation()
    for key in ("m", "p", "/", " ", "down", "t"):
        navigation.press(key, None)
    assert (navigation.typing, navigation.overlay, navigation.frozen) == (False, None, None)
    navigation.press("q", None)
    assert navigation.wants_to_quit


@pytest.mark.parametrize("key", ["q", "Q"])
def test_quit_works_with_caps_lock(key: str) -> None:
    assert pressed(key).wants_to_quit
