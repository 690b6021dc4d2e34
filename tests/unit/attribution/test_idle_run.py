"""What goes on while nothing happens: in the books as soon as somebody reads them, and checked in every cycle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.attribution.bookkeeper import Bookkeeper
from otel_gpu.attribution.lines import Entry
from otel_gpu.model import Attribution, GpuReading
from tests.builders import GIB, listed
from tests.unit.attribution.played import CYCLE_MJ, CYCLE_S, JOB, WEB, Played, gpu_with
from tests.unit.attribution.played import old as old_process

THERE = [old_process(1, WEB), old_process(2, WEB), old_process(3, JOB)]
PARTS_MJ = [CYCLE_MJ // 4, CYCLE_MJ // 4, CYCLE_MJ // 2]


def quiet(played: Played) -> GpuReading:
    return replace(gpu_with(*(listed(pid, GIB) for pid in (1, 2, 3))), utilization=played.rows())


def go_on(played: Played, cycles: int = 1) -> Attribution:
    """The answer of the last of so many in which nothing happens."""
    answer = None
    for _ in range(cycles):
        answer = played.next(quiet(played), processes=THERE)
    assert answer is not None
    return answer


def at_rest() -> Played:
    """A GPU of which nothing is booked any more before somebody asks."""
    played = Played()
    assert go_on(played, 8).later is not None
    return played


def books(played: Played) -> Bookkeeper:
    found = played.attributor._books
    assert found is not None
    return found


def entries(played: Played) -> list[Entry]:
    """The lines of the processes."""
    return [entry for _, entry in sorted(books(played).ledger.processes.entries.items())]


def lent(played: Played) -> list[bool]:
    return [entry.lent_to is not None for entry in entries(played)]


def test_who_reads_one_line_has_all_of_a_gpu_booked() -> None:
    played = at_rest()
    before = [(entry.sums.idle_us, entry.sums.estimated_mj) for entry in entries(played)]
    go_on(played, 4)
    assert all(lent(played))
    first, *others = entries(played)
    assert first.sums.idle_us == before[0][0] + round(4 * CYCLE_S * 1e6)
    assert not any(lent(played))
    for entry, (idle_us, energy_mj), part_mj in zip([first, *others], before, PARTS_MJ, strict=True):
        assert entry.sums.idle_us == idle_us + round(4 * CYCLE_S * 1e6)
        assert entry.sums.estimated_mj == energy_mj + 4 * part_mj


def test_so_does_who_reads_for_how_long_it_was_idle() -> None:
    played = at_rest()
    idle = entries(played)[0].idle
    assert idle is not None
    before_us = idle.idle_us
    go_on(played, 3)
    assert all(lent(played))
    again = entries(played)[0].idle
    assert again is idle
    assert again.idle_us == before_us + round(3 * CYCLE_S * 1e6)
    assert not any(lent(played))


def test_nothing_else_is_put_in_its_place_meanwhile() -> None:
    played = at_rest()
    with pytest.raises(AttributeError):
        entries(played)[0].idle = None


def test_answers_go_on_after_the_books_were_read() -> None:
    played, other = at_rest(), at_rest()
    for _ in range(3):
        played.attributor.to_state()
        first, second = go_on(played), go_on(other)
        assert first == second
        assert first.later is not None
        assert first.later.moved_parts == (second.later and second.later.moved_parts)


def test_an_answer_is_the_same_however_late_it_is_read() -> None:
    played, other = at_rest(), at_rest()
    answer, read_at_once = go_on(played), repr(go_on(other))
    go_on(played, 2)
    played.next(replace(quiet(played), utilization=played.rows((1, 50))), processes=THERE)
    assert repr(answer) == read_at_once


def test_energy_that_a_gpu_has_and_its_lines_do_not_is_told_at_once() -> None:
    played = at_rest()
    books(played).ledger.device("GPU-0").attributed_mj += 7
    assert go_on(played).gpus[0].energy_error_mj == 7


@pytest.mark.parametrize("which", [0, 1])
def test_so_is_energy_that_is_told_of_two_lines(which: int) -> None:
    """Of processes or of workloads."""
    played = at_rest()
    (of_gpu,) = books(played)._gpus.values()
    wrong = next(shown for shown in of_gpu.seated if bool(shown.staff) is bool(which))
    wrong.members = [*wrong.members, 2]
    played.attributor.to_state()  # the next begins with what is there
    first, second = go_on(played), go_on(played)
    assert second.gpus[0].energy_error_mj == 2 * first.gpus[0].energy_error_mj < 0
