"""Figures as text: units, rounding and marks."""

from __future__ import annotations

import pytest

from otel_gpu.view.terminal import encodable, in_ascii
from otel_gpu.view.text import (
    UNKNOWN,
    bar_cells,
    celsius,
    gpu_span,
    joules,
    kilowatt_hours,
    money,
    percent,
    size,
    span,
    state_text,
    state_with_reason,
    utc,
    watts,
)
from tests.builders import GIB, MIB, attribution
from tests.tables import render

TABLE = render(attribution(), width=120)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ANSI_X3.4-1968"])
def test_every_mark_has_one_ascii_mark(encoding: str) -> None:
    text = encodable(encoding, TABLE)
    assert text.isascii()
    assert [len(line) for line in text.splitlines()] == [len(line) for line in TABLE.splitlines()]
    assert "# measured  % inferred  ? unattributed  : reserved by the driver  . free" in text
    assert "* estimated  ~ inferred  - unknown" in text
    assert in_ascii("日本") == "????"


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8", "utf8", "utf_8", None])
def test_text_is_unchanged_in_utf_8(encoding: str | None) -> None:
    assert encodable(encoding, TABLE) is TABLE


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [
        (None, UNKNOWN), (0, "0 MiB"), (MIB, "1 MiB"), (GIB - MIB, "1023 MiB"), (GIB, "1.0 GiB"),
        (80 * GIB, "80.0 GiB"), (-GIB, "-1.0 GiB"),
    ],
)  # fmt: skip
def test_sizes_are_in_binary_units_and_unknown_is_not_zero(bytes_: int | None, text: str) -> None:
    assert size(bytes_) == text


@pytest.mark.parametrize(
    ("energy_mj", "text"),
    [
        (None, UNKNOWN), (0, "0 J"), (400, "0 J"), (999_400, "999 J"), (1_500_000, "1.5 kJ"), (150_000_000, "150 kJ"),
        (3.2e9, "3.2 MJ"), (2.5e12, "2.5 GJ"),
    ],
)  # fmt: skip
def test_energy_is_in_the_largest_unit_of_joules(energy_mj: float | None, text: str) -> None:
    assert joules(energy_mj) == text


@pytest.mark.parametrize(
    ("energy_mj", "text"),
    [
        (0, "0 Wh"), (272_000, "0.076 Wh"), (3.6e6, "1 Wh"), (36e6, "10 Wh"), (1.5 * 3.6e6, "1.5 Wh"),
        (999 * 3.6e6, "999 Wh"), (1.25 * 3.6e9, "1.25 kWh"), (123_456 * 3.6e9, "123456 kWh"),
    ],
)  # fmt: skip
def test_totals_of_energy_are_in_watt_hours(energy_mj: float, text: str) -> None:
    assert kilowatt_hours(energy_mj) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, UNKNOWN), (0, "0 s"), (59, "59 s"), (119, "119 s"), (120, "2 m"), (7_199, "120 m"), (7_200, "2 h"),
        (172_799, "48 h"), (172_800, "2 d"),
    ],
)  # fmt: skip
def test_a_span_is_in_its_largest_unit(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def test_a_span_summed_over_several_gpus_is_gpu_time() -> None:
    assert [gpu_span(1800, places) for places in (1, 3)] == ["30 m", "30 GPU-m"]
    assert (gpu_span(0, 3), gpu_span(None, 0)) == ("0 s", UNKNOWN)


def test_small_amounts_of_money_have_four_digits() -> None:
    amounts = (None, 0, 0.0123, 0.99996, 1, 12.345, 1234.5)
    assert [money(amount, "EUR") for amount in amounts] == [
        UNKNOWN, "0.00 EUR", "0.0123 EUR", "1.0000 EUR", "1.00 EUR", "12.35 EUR", "1234.50 EUR",
    ]  # fmt: skip


def test_ratios_power_and_temperature_are_whole_numbers() -> None:
    assert [percent(ratio) for ratio in (None, 0, 0.004, 0.83, 1)] == [UNKNOWN, "0 %", "0 %", "83 %", "100 %"]
    assert [watts(power_w) for power_w in (None, 0, 69.7)] == [UNKNOWN, "0 W", "70 W"]
    assert [celsius(temperature_c) for temperature_c in (None, 49)] == [UNKNOWN, "49 °C"]


def test_a_time_outside_the_calendar_is_unknown() -> None:
    assert utc(1e300, "%H") == UNKNOWN


def test_an_idle_state_has_its_time() -> None:
    assert [state_text(*state) for state in (("busy", 1.0), ("idle", 90.0), ("idle", None), (None, None))] == [
        "busy", "idle 90 s", "idle", UNKNOWN,
    ]  # fmt: skip


def test_a_reason_that_begins_with_the_state_is_used_alone() -> None:
    assert state_with_reason("paused", "paused at 10:00 until resumed") == "paused at 10:00 until resumed"
    assert state_with_reason("failed", "it fell off the bus") == "failed: it fell off the bus"
    assert state_with_reason("ok", None) == "ok"


def test_every_kind_of_memory_in_use_has_a_cell_and_all_cells_are_used() -> None:
    kinds = {"measured": 1000, "inferred": 1, "unattributed": 1, "reserved": 1, "free": 0}
    cells = bar_cells(kinds, 20)
    assert cells == {"measured": 18, "inferred": 1, "unattributed": 1, "reserved": 0, "free": 0}
