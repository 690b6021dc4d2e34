"""Names are unique in a table."""

from __future__ import annotations

import re

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.model import Report, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.view.names import workload_names
from tests.builders import GIB, attribute, facts, gpu, listed, memory, snapshot
from tests.tables import render


def sections(text: str) -> list[list[str]]:
    return [section.splitlines() for section in text.split("\n\n")]


def pods(*names: tuple[str, str | None, str | None]) -> Report:
    """An answer with these containers on one GPU, each with its name, namespace and pod; a pod of ``None`` is none."""
    refs = [WorkloadRef(WorkloadKind.CONTAINER, f"{number:x}" * 64) for number in range(len(names))]
    return attribute(
        None,
        snapshot(
            gpu(0, [listed(pid, GIB) for pid in range(1, len(names) + 1)], memory=memory(used_gib=len(names))),
            processes=[facts(pid, ref) for pid, ref in enumerate(refs, start=1)],
            names={
                ref.id: WorkloadNames(container=name, pod=pod, namespace=namespace)
                for ref, (name, namespace, pod) in zip(refs, names, strict=True)
            },
        ),
    )


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([("a", "n", "x-1"), ("b", "n", "x-1")], ["a", "b"]),
        ([("eval", "n", "eval-5w7lx"), ("eval", "n", "eval-86tsb")], ["eval (5w7lx)", "eval (86tsb)"]),
        ([("book", "n", "lab-one-0"), ("book", "n", "lab-two-0")], ["book (one-0)", "book (two-0)"]),
        ([("a", "n", "x-0"), ("a", "m", "x-0")], ["a (n/x-0)", "a (m/x-0)"]),
        ([("a", "n", "x-0"), ("a", None, None)], ["a (000000000000)", "a (111111111111)"]),
        ([("a", "n", "0"), ("a", "n", "x-0")], ["a (0)", "a (x-0)"]),
    ],
    ids=["differ", "a suffix", "as much as it takes", "the namespace", "the id", "one is the end of the other"],
)
def test_a_shared_name_gets_a_suffix_that_distinguishes(
    names: list[tuple[str, str | None, str | None]], shown: list[str]
) -> None:
    _, _, _, workloads, processes, _ = sections(render(pods(*names), width=200))
    assert sorted(re.split(" {2,}", line)[0] for line in workloads[1:]) == sorted(shown)
    assert sorted(re.split(" {2,}", line.strip())[2] for line in processes[1:]) == sorted(shown)


@pytest.mark.parametrize("width", [80, 60])
def test_no_two_rows_are_alike_in_a_narrow_terminal(width: int) -> None:
    answer = pods(*(("a-name-of-some-length", "research", f"a-pod-of-some-length-{end}") for end in ("5w7lx", "86tsb")))
    for section in sections(render(answer, width=width))[3:5]:
        names = [re.sub(r"^ *\d+", "", line) for line in section[1:]]
        assert len(names) == len(set(names)) == 2
        assert max(map(len, section)) <= width


def renamed(before: WorkloadNames, after: WorkloadNames) -> list[str]:
    """The names in the workload table after a container was renamed: its ended and its live entry."""
    ref = WorkloadRef(WorkloadKind.CONTAINER, "a" * 64)
    attributor = Attributor()
    for number, names in enumerate((before, before, after, after), start=1):
        one = gpu(0, [listed(1, GIB)], memory=memory(used_gib=1), energy_mj=number * 100_000)
        report = attributor.observe(snapshot(one, processes=[facts(1, ref)], names={ref.id: names}, at_s=5.0 * number))
    return sorted(workload_names(report.workloads).values())


def test_a_container_whose_label_changed_keeps_its_plain_name() -> None:
    before = WorkloadNames(container="train", extra=(("team", "a"),))
    assert renamed(before, WorkloadNames(container="train", extra=(("team", "b"),))) == ["train", "train"]


def test_after_a_rename_the_ended_entry_keeps_the_old_name() -> None:
    assert renamed(WorkloadNames(container="old"), WorkloadNames(container="new")) == ["new", "old"]
