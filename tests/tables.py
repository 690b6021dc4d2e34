"""The table of ``otel-gpu once``, of a report alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from otel_gpu.export import table
from otel_gpu.model import Report
from otel_gpu.version import __version__
from otel_gpu.view.builder import Subject, ViewBuilder
from otel_gpu.view.model import View


def views(*, simulated: bool = False, host_name: str = "") -> Callable[[Report], View]:
    """Makes views of reports, without a history."""
    return ViewBuilder(Subject(__version__, host_name, 5.0, "asked for" if simulated else None)).build


def render(report: Report, *, simulated: bool = False, host_name: str = "", **options: Any) -> str:
    """The table of a report."""
    return table.render(report, views(simulated=simulated, host_name=host_name)(report), **options)
