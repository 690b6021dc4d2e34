"""Cycles to look at: of answers made by hand, or with just the workloads that a test is about."""

from __future__ import annotations

import json
from dataclasses import replace

from otel_gpu.export.document import document
from otel_gpu.export.text import Paint
from otel_gpu.model import MethodEnergy, Report
from otel_gpu.top.board import Seen
from otel_gpu.top.cycle import Cycle, Process, Use, Workload, combine
from otel_gpu.top.layout import Canvas
from otel_gpu.top.looking import Looking
from otel_gpu.top.screen import About as Subject
from otel_gpu.top.screen import draw
from otel_gpu.web.particulars import About, particulars
from tests.builders import attribution

ABOUT = About("1.2.3", "node-1", 5.0, None, "EUR")


def told(answer: Report, about: About = ABOUT) -> tuple[object, object]:
    """The two objects of a cycle, as they come out of JSON."""
    beside = particulars(answer, about, {})
    return json.loads(json.dumps(document(answer))), json.loads(json.dumps(beside))


def cycle(answer: Report | None = None, about: About = ABOUT) -> Cycle:
    """A cycle as it is shown."""
    return combine(*told(answer or attribution(), about))


def use(**figures: object) -> Use:
    """What somebody does, nothing of which is known unless told."""
    nothing = Use(None, MethodEnergy(), None, MethodEnergy(), None, None, None, ended=False)
    return replace(nothing, **figures)  # type: ignore[arg-type]  # figures are a Use's


def workload(title: str, memory_bytes: int | None = None, *, processes: int = 0, **figures: object) -> Workload:
    """A container of this name, with so many processes."""
    own = tuple(
        Process(f"{title}{pid}", pid, "python3", "0", memory_bytes, use(**figures)) for pid in range(1, processes + 1)
    )
    return Workload(
        key=f"container 0 {title}", title=title, kind="container", id=title, namespace="team", pod=f"{title}-0",
        image="image:1", places="0", measured_bytes=memory_bytes, inferred_bytes=None, confidence=None, cost=None,
        use=use(**figures), processes=own, gpus=frozenset({0}), words=f"{title}\nteam\nimage:1\ncontainer\ngpu".lower(),
    )  # fmt: skip


def crowd(*workloads: Workload) -> Cycle:
    """A cycle with these workloads."""
    return replace(cycle(), workloads=workloads)


def drawn(shown: Cycle, columns: int = 80, rows: int = 24, looking: Looking | None = None) -> list[str]:
    """The screen without colours."""
    canvas = Canvas(columns, rows, Paint(enabled=False))
    return draw(looking or Looking(), Seen(shown), Subject(), canvas)
