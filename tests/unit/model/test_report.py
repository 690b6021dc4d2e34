from __future__ import annotations

import pytest

from otel_gpu.model import GpuState, workload_state

BUSY, IDLE, UNKNOWN, ALLOCATED = GpuState.BUSY, GpuState.IDLE, GpuState.UNKNOWN, GpuState.ALLOCATED


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([BUSY, IDLE, UNKNOWN, ALLOCATED], BUSY),
        ([IDLE, IDLE], IDLE),
        ([IDLE, UNKNOWN], UNKNOWN),
        ([UNKNOWN], UNKNOWN),
        ([IDLE, ALLOCATED], IDLE),
        ([UNKNOWN, ALLOCATED], UNKNOWN),
        ([ALLOCATED], ALLOCATED),
        ([], None),
    ],
)
def test_a_workload_is_busy_if_it_is_anywhere_and_idle_if_it_may_be_busy_nowhere(
    states: list[GpuState], expected: GpuState | None
) -> None:
    assert workload_state(states) is expected
    assert workload_state(reversed(states)) is expected
