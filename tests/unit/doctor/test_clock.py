from __future__ import annotations

import pytest

from otel_gpu.clock import ManualClock, SystemClock
from otel_gpu.doctor.clock import check_clock, read_synchronised
from otel_gpu.doctor.findings import Verdict

NOW_NS = 1_800_000_000_000_000_000


@pytest.mark.parametrize(
    ("synchronised", "verdict"), [(True, Verdict.OK), (False, Verdict.DEGRADED), (None, Verdict.UNUSED)]
)
def test_the_verdict_follows_the_kernels_synchronisation_status(synchronised: bool | None, verdict: Verdict) -> None:
    found = check_clock(ManualClock(NOW_NS), synchronised=synchronised)
    assert found.verdict is verdict
    assert (found.fix is not None) is (verdict is Verdict.DEGRADED)


def test_a_clock_that_was_never_set_is_degraded_even_if_the_kernel_calls_it_synchronised() -> None:
    found = check_clock(ManualClock(86_400 * 10**9), synchronised=True)
    assert found.verdict is Verdict.DEGRADED
    assert found.found.startswith("1970-01-02T00:00:00Z is earlier than this release")
    assert "timedatectl set-ntp true" in (found.fix or "")


def test_this_kernels_clock_is_read_and_is_not_earlier_than_the_release() -> None:
    synchronised = read_synchronised()
    assert synchronised in (True, False, None)
    assert "earlier than this release" not in check_clock(SystemClock(), synchronised=synchronised).found
