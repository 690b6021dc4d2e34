from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from otel_gpu.model import MethodEnergy
from otel_gpu.top import keys
from otel_gpu.top.cycle import Cycle
from otel_gpu.top.looking import Looking, Overlay
from otel_gpu.top.places import Place
from tests.unit.top.cycles import crowd, workload

SHOWN = crowd(
    workload("beta", 20, sm_ratio=0.5, power_w=100.0, so_far=MethodEnergy(estimated_mj=5), idle_s=1.0),
    workload("Alpha", 30, sm_ratio=0.1, power_w=300.0, so_far=MethodEnergy(measured_mj=9), idle_s=3.0),
    workload("gamma", None),
    workload("delta", 10, sm_ratio=0.9, power_w=200.0, so_far=MethodEnergy(inferred_mj=1), idle_s=2.0, processes=2),
)


def pressed(*presses: str, shown: Cycle = SHOWN) -> Looking:
    looking = Looking()
    for key in presses:
        looking.press(key, shown)
    return looking


def titles(looking: Looking, shown: Cycle = SHOWN) -> list[str]:
    return [workload.title for workload in looking.workloads(shown)]


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
def test_a_key_sorts_by_a_column_and_again_the_other_way_with_the_unknown_last(
    presses: Sequence[str], order: list[str]
) -> None:
    assert titles(pressed(*presses)) == order


def test_equal_ones_stand_in_the_order_of_their_names_whichever_way() -> None:
    shown = crowd(workload("b", 5), workload("a", 5), workload("c", 5))
    assert titles(pressed(shown=shown), shown) == titles(pressed("m", shown=shown), shown) == ["a", "b", "c"]


def test_gpus_stand_in_the_order_of_their_numbers() -> None:
    at = {"ten": Place(False, 10, ""), "two": Place(False, 2, ""), "part": Place(False, 2, "1g.10gb")}
    shown = crowd(*(replace(workload(title, 5), place_order=(place,)) for title, place in at.items()))
    assert titles(pressed("g", shown=shown), shown) == ["two", "part", "ten"]
    assert titles(pressed("g", "g", shown=shown), shown) == ["ten", "part", "two"]


def test_cost_is_no_order_where_nothing_has_a_price() -> None:
    unpriced = replace(SHOWN, currency=None)
    assert pressed("c", shown=unpriced).order.name == "memory"
    assert pressed("c").order.name == "cost"
    assert pressed(*">>>>>>>>", shown=unpriced).order.name == "idle"


def test_a_column_that_went_away_leaves_the_order_to_memory_and_its_sign() -> None:
    looking, unpriced = pressed("c", "c"), replace(SHOWN, currency=None)
    assert titles(looking, unpriced) == ["Alpha", "beta", "delta", "gamma"]
    assert (looking.order.name, looking.falls) == ("memory", True)


# ---------------------------------------------------------------------------- the filter


def test_a_filter_works_while_it_is_typed_whatever_the_case() -> None:
    looking = pressed("/", "A", "L")
    assert looking.typing
    assert titles(looking) == ["Alpha"]
    looking.press(keys.BACKSPACE, SHOWN)
    looking.press(keys.BACKSPACE, SHOWN)
    assert len(titles(looking)) == 4


def test_letters_that_sort_and_quit_are_letters_while_a_filter_is_typed() -> None:
    looking = pressed("/", "q", "m", " ", "h")
    assert (looking.filter, looking.wants_to_quit, looking.overlay, looking.frozen) == ("qm h", False, None, None)


def test_enter_keeps_the_filter_and_escape_clears_it() -> None:
    kept = pressed("/", "l", "t", "a", keys.ENTER)
    assert not kept.typing
    assert titles(kept) == ["delta"]
    kept.press(keys.ESCAPE, SHOWN)
    assert len(titles(kept)) == 4
    assert pressed("/", "t", keys.ESCAPE).filter == ""


@pytest.mark.parametrize(("words", "found"), [("team", 4), ("IMAGE:1 bet", 1), ("container nobody", 0), ("  ", 4)])
def test_every_word_must_be_somewhere_in_what_is_known_of_it(words: str, found: int) -> None:
    assert len(titles(pressed("/", *words, keys.ENTER))) == found


def test_a_filter_has_an_end() -> None:
    assert len(pressed("/", *"x" * 500).filter) == 200


# ---------------------------------------------------------------------------- the selected line


def selected(looking: Looking, shown: Cycle = SHOWN) -> str:
    lines = looking.lines(shown)
    return lines[looking.position(lines)].key


def test_the_selected_workload_stays_selected_wherever_it_goes() -> None:
    looking = pressed("down")
    assert selected(looking).endswith("beta")
    looking.press("n", SHOWN)
    looking.press("n", SHOWN)
    assert selected(looking).endswith("beta")


def test_one_who_ends_leaves_the_selection_to_who_takes_the_place() -> None:
    looking = pressed("down", "down")
    assert selected(looking).endswith("delta")
    without = crowd(*(each for each in SHOWN.workloads if each.title != "delta"))
    assert selected(looking, without).endswith("gamma")
    assert looking.lines(crowd()) == []
    assert looking.position([]) == 0


def test_keys_go_no_further_than_the_ends() -> None:
    assert selected(pressed("up", "k", keys.PAGE_UP)).endswith("Alpha")
    assert selected(pressed(keys.LAST, "j", keys.DOWN)).endswith("gamma")
    assert selected(pressed(keys.LAST, keys.FIRST)).endswith("Alpha")


def test_an_opened_workload_shows_its_names_and_processes_until_it_is_closed() -> None:
    looking = pressed("down", "down", "p")
    inside = [line for line in looking.lines(SHOWN) if line.workload.title == "delta"]
    assert [line.fact for line in inside if line.fact][:3] == ["pod team/delta-0", "image image:1", "container delta"]
    assert [line.process.pid for line in inside if line.process is not None] == [1, 2]
    assert len(looking.lines(SHOWN)) == 3 + len(inside)
    for _ in inside[1:]:
        looking.press("down", SHOWN)
    looking.press(keys.ENTER, SHOWN)  # on a process: that closes what it stands in
    assert len(looking.lines(SHOWN)) == 4
    assert selected(looking).endswith("delta")


def test_what_was_opened_of_one_who_ended_is_forgotten() -> None:
    looking = pressed("p")
    assert looking.is_open(SHOWN.workloads[1])
    looking.lines(crowd())
    assert not looking.is_open(SHOWN.workloads[1])


# ---------------------------------------------------------------------------- the rest


def test_space_freezes_what_is_shown_and_goes_on() -> None:
    looking, later = pressed(" "), crowd(workload("later"))
    assert looking.shown(later) is SHOWN
    looking.press(" ", later)
    assert looking.shown(later) is later


def test_any_key_closes_help_and_q_quits_only_then() -> None:
    assert pressed("?").overlay is Overlay.HELP
    closed = pressed("?", "q")
    assert (closed.overlay, closed.wants_to_quit) == (None, False)
    assert pressed("?", "q", "q").wants_to_quit


def test_troubles_and_help_follow_each_other() -> None:
    assert pressed("t").overlay is Overlay.TROUBLES
    assert pressed("t", "h").overlay is Overlay.HELP
    assert pressed("t", "t").overlay is None


def test_before_the_first_cycle_there_is_help_and_the_way_out() -> None:
    looking = Looking()
    for key in ("m", "p", "/", " ", "down", "t"):
        looking.press(key, None)
    assert (looking.typing, looking.overlay, looking.frozen) == (False, None, None)
    looking.press("q", None)
    assert looking.wants_to_quit


@pytest.mark.parametrize("key", ["q", "Q"])
def test_it_ends_whether_or_not_capitals_are_locked(key: str) -> None:
    assert pressed(key).wants_to_quit
