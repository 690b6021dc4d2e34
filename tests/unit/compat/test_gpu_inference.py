"""gpu-inference-exporter: memory that the driver lists, and memory that it does not list."""

from __future__ import annotations

import pytest

from otel_gpu.model import MemorySplit, WorkloadKind, WorkloadRef
from tests.builders import CONTAINER, CONTAINER_ID
from tests.unit.compat.series import lines, text, values
from tests.unit.metrics.builders import answer, device, part, split, workload

NAME = "gpu-inference"
HIDDEN = WorkloadRef(WorkloadKind.CONTAINER, "b" * 64)
LISTED = f'container_name="vllm",container_id="{CONTAINER_ID[:12]}"'
UNLISTED = 'container_name="",container_id="bbbbbbbbbbbb"'


def shared() -> str:
    """A GPU with a listed container, an unlisted one, and a job outside of containers."""
    return text(
        NAME,
        answer(
            device(memory=split(limit=100, reserved=5, measured=30, inferred=20, unattributed=10)),
            workloads=[
                workload(part(measured=25)),
                workload(part(inferred_bytes=20), ref=HIDDEN, names=None),
                workload(part(measured=5), ref=WorkloadRef(WorkloadKind.SLURM_JOB, "7"), names=None),
            ],
        ),
    )


def test_every_series_has_the_exporters_names_and_labels() -> None:
    assert [line for line in shared().splitlines() if not line.startswith("# HELP")] == [
        "# TYPE gpu_memory_total_bytes gauge",
        'gpu_memory_total_bytes{gpu="0"} 100',
        "# TYPE gpu_memory_used_bytes gauge",
        'gpu_memory_used_bytes{gpu="0"} 60',
        "# TYPE gpu_memory_free_bytes gauge",
        'gpu_memory_free_bytes{gpu="0"} 35',
        "# TYPE gpu_memory_known_bytes gauge",
        'gpu_memory_known_bytes{gpu="0"} 30',
        "# TYPE gpu_memory_unknown_bytes gauge",
        'gpu_memory_unknown_bytes{gpu="0"} 30',
        "# TYPE container_gpu_memory_bytes gauge",
        f'container_gpu_memory_bytes{{{LISTED},gpu="0",method="nvidia-smi"}} 25',
        f'container_gpu_memory_bytes{{{UNLISTED},gpu="0",method="inference"}} 20',
        "# TYPE container_gpu_detected gauge",
        f"container_gpu_detected{{{LISTED}}} 1",
        f"container_gpu_detected{{{UNLISTED}}} 1",
        "# TYPE gpu_inference_active gauge",
        'gpu_inference_active{gpu="0"} 1',
    ]


def test_known_and_unknown_sum_to_used_even_if_the_lists_exceed_it() -> None:
    claimed = answer(device(memory=split(limit=100, reserved=0, measured=50, overcount=8)))
    assert lines(NAME, "gpu_memory_used_bytes", claimed) == ['gpu_memory_used_bytes{gpu="0"} 42']
    assert lines(NAME, "gpu_memory_known_bytes", claimed) == ['gpu_memory_known_bytes{gpu="0"} 42']
    assert lines(NAME, "gpu_memory_unknown_bytes", claimed) == ['gpu_memory_unknown_bytes{gpu="0"} 0']


def test_a_gpu_without_memory_figures_has_no_series() -> None:
    assert [line for line in text(NAME, answer(device())).splitlines() if not line.startswith("#")] == []


@pytest.mark.parametrize(
    ("memory", "active"),
    [(split(measured=9), 0), (split(measured=9, inferred=1), 1), (split(measured=9, unattributed=1), 1)],
)
def test_inference_is_active_if_memory_in_use_is_not_listed(memory: MemorySplit, active: int) -> None:
    assert values(NAME, "gpu_inference_active", answer(device(memory=memory)), "gpu") == {"0": active}


def test_a_container_on_two_mig_instances_of_a_gpu_is_one_series() -> None:
    parts = [part(mig_uuid=uuid, measured=held) for uuid, held in (("MIG-1", 3), ("MIG-2", 4))]
    report = answer(device(memory=split(measured=7)), workloads=[workload(*parts)])
    assert values(NAME, "container_gpu_memory_bytes", report, "gpu", "method") == {("0", "nvidia-smi"): 7}
    assert values(NAME, "container_gpu_detected", report, "container_name") == {"vllm": 1}


def test_a_container_with_both_kinds_of_memory_has_both_series() -> None:
    report = answer(device(), workloads=[workload(part(measured=3, inferred_bytes=4))])
    assert values(NAME, "container_gpu_memory_bytes", report, "method") == {"nvidia-smi": 3, "inference": 4}


def test_a_container_that_ended_or_only_may_use_a_gpu_has_no_series() -> None:
    report = answer(device(), workloads=[workload(part(measured=3, active=False)), workload(ref=HIDDEN)])
    assert lines(NAME, "container_gpu_detected", report) == []
    assert lines(NAME, "container_gpu_memory_bytes", report) == []


def test_a_renamed_container_has_series_under_its_new_name_only() -> None:
    old, new = (workload(part(measured=held), ref=CONTAINER, naming=naming) for naming, held in ((0, 1), (1, 2)))
    assert values(NAME, "container_gpu_memory_bytes", answer(device(), workloads=[old, new]), "gpu") == {"0": 2}
