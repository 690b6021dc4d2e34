"""One function for each kind of panel."""

from __future__ import annotations

from tools.dashboards.model import Colors, Column, Draw, Panel, Query, Unit


def stat(
    title: str, description: str, unit: Unit, *queries: Query, width: int = 3, alarm: float | None = None
) -> Panel:
    """Figures of the current time, or of the whole time range."""
    return Panel(title, description, Draw.STAT, unit, queries, width, 4, alarm=alarm)


def lines(
    title: str,
    description: str,
    unit: Unit,
    *queries: Query,
    width: int = 12,
    top: float | None = None,
    alarm: float | None = None,
) -> Panel:
    """Figures over time. ``top`` is the maximum of the axis."""
    return Panel(title, description, Draw.LINES, unit, queries, width, top=top, alarm=alarm)


def stack(
    title: str,
    description: str,
    unit: Unit,
    *queries: Query,
    width: int = 12,
    colors: Colors = (),
) -> Panel:
    """Parts of a sum over time."""
    return Panel(title, description, Draw.STACK, unit, queries, width, colors=colors)


def bars(title: str, description: str, unit: Unit, *queries: Query, width: int = 12) -> Panel:
    """The largest figures of the current time."""
    return Panel(title, description, Draw.BARS, unit, queries, width, 9)


def table(title: str, description: str, columns: tuple[Column, ...], *queries: Query, width: int = 12) -> Panel:
    """A row for each combination of labels, and a column for each label and query."""
    return Panel(title, description, Draw.TABLE, Unit.NONE, queries, width, 9, columns)
