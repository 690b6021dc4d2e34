from __future__ import annotations

import pytest

from otel_gpu.clock import ManualClock, SystemClock
from otel_gpu.doctor.clock import examine_clock, read_synchronised
from otel_gpu.doctor.findings import Verdict

NOW_NS = 1_800_000_000_000_000_000


@pytest.mark.parametrize(
    ("synchronised", "verdict"), [(True, Verdict.OK), (False, Verdict.DEGRADED), (None, Verdict.UNUSED)]
)
def test_what_the_kernel_says_of_its_clock_is_told(synchronised: bool | None, verdict: Verdict) -> None:
    found = examine_clock(ManualClock(NOW_NS), synchronised=synchronised)
    assert found.verdict is verdict
    assert (found.fix is not None) is (verdict is Verdict.DEGRADED)


def test_a_clock_that_was_never_set_degrades_whatever_the_kernel_says() -> None:
    found = examine_clock(ManualClock(86_400 * 10**9), synchronised=True)
    assert found.verdict is Verdict.DEGRADED
    assert found.found.startswith("1970-01-02T00:00:00Z, which is before this program was written")
    assert found.fix is not None
    assert "timedatectl set-ntp true" in found.fix


def test_this_kernel_can_be_asked_or_says_that_it_cannot_and_its_clock_is_not_from_before() -> None:
    synchronised = read_synchronised()
    assert synchronised in (True, False, None)
    assert "before this program" not in examine_clock(SystemClock(), synchronised=synchronised).found
