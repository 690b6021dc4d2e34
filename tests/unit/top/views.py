"""Views to draw: of reports made by hand, or with only the workloads that a test is about."""

from __future__ import annotations

from dataclasses import replace

from otel_gpu.model import Report
from otel_gpu.top.latest import Latest
from otel_gpu.top.layout import Canvas
from otel_gpu.top.navigation import Navigation
from otel_gpu.top.screen import draw
from otel_gpu.view.builder import Subject, ViewBuilder
from otel_gpu.view.model import Cell, Detail, ProcessRow, View, WorkloadRow
from otel_gpu.view.terminal import Paint, Tone
from tests.builders import attribution

SUBJECT = Subject("1.2.3", "node-1", 5.0, None, "EUR")

EXPLANATION = tuple(
    Detail(name, "why") for name in ("State", "Memory", "SM", "Power", "Energy", "Idle", "Cost", "GPU 0")
)


def view_of(report: Report | None = None, subject: Subject = SUBJECT) -> View:
    """The view of a report, without a history."""
    return ViewBuilder(subject).build(report or attribution())


def simulated(report: Report | None = None, host_name: str = "node-1") -> View:
    """The view of a simulated host."""
    return view_of(report, replace(SUBJECT, host_name=host_name, simulated_because="asked for"))


def row(
    name: str,
    memory_bytes: float | None = None,
    *,
    processes: int = 0,
    state: str = "none",
    tone: Tone = Tone.NONE,
    place: str = "000000000 ",
    origin: str = "container · team/pod-0",
    **figures: float,
) -> WorkloadRow:
    """A container of this name, with so many processes. ``figures`` are values of columns."""
    values = {"memory": memory_bytes, **figures}
    numbers = [Cell(str(values.get(key)), values.get(key)) for key in ("memory", "sm", "power", "energy", "idle")]
    status = Cell(state, state)
    return WorkloadRow(
        key=f"0 container {name}", id=name, name=name, full_name=name, colour=0,
        state=state, tone=tone, gpus=(0,), words=f"{name} team image:1 container gpu".lower(),
        cells=(
            Cell(name, name.lower()), Cell(origin), Cell("0", place), *numbers,
            Cell(str(figures.get("cost")), figures.get("cost")),
            status,
        ),
        identity=(Detail("Name", name), Detail("Image", "image:1")),
        parts=(), explanation=EXPLANATION,
        processes=tuple(
            ProcessRow(f"{name}{pid}", state, tone, (Cell(str(pid), pid), Cell("python3"), Cell("0"), *numbers, status))
            for pid in range(1, processes + 1)
        ),
        no_processes="" if processes else "This workload has no process on a GPU.",
    )  # fmt: skip


def crowd(*rows: WorkloadRow) -> View:
    """A view with these workloads."""
    return view_of()._replace(workloads=rows)


def unpriced(view: View) -> View:
    """The view of an agent without prices."""
    rows = tuple(each._replace(cells=(*each.cells[:-2], each.cells[-1])) for each in view.workloads)
    columns = tuple(column for column in view.columns if column.key != "cost")
    return view._replace(columns=columns, workloads=rows)


def drawn(view: View, columns: int = 80, rows: int = 24, navigation: Navigation | None = None) -> list[str]:
    """The screen without colours."""
    canvas = Canvas(columns, rows, Paint(enabled=False))
    return draw(navigation or Navigation(), Latest(view), None, canvas)
