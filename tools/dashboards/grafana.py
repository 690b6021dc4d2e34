"""The JSON of a dashboard for Grafana 11 and later (schema version 39)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tools.dashboards.model import COLUMNS, Dashboard, Draw, Panel, Query, Variable
from tools.dashboards.promql import promql

Json = dict[str, Any]

SCHEMA: Final = 39
"""The schema of Grafana 11.0. Later versions migrate it when they load it."""

TAG: Final = "otel-gpu"
_SOURCE: Final[Json] = {"type": "prometheus", "uid": "${datasource}"}
_TYPES: Final = {
    Draw.STAT: "stat",
    Draw.LINES: "timeseries",
    Draw.STACK: "timeseries",
    Draw.BARS: "bargauge",
    Draw.TABLE: "table",
}
_AT_ONCE: Final = frozenset({Draw.STAT, Draw.BARS, Draw.TABLE})
"""Panels of one instant, the end of the time range."""

_LAST: Final[Json] = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def rendered(dashboard: Dashboard) -> Json:
    """The dashboard. Its data source is a variable, so that any Grafana can import it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA,
        "version": 1,
        "id": None,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "fiscalYearStartMonth": 0,
        "annotations": {"list": []},
        "links": [_links()],
        "templating": {"list": [_source_variable(), *map(_variable, dashboard.variables)]},
        "panels": list(_panels(dashboard)),
    }


def _links() -> Json:
    """Links to the other dashboards with the same time range and choice."""
    return {
        "type": "dashboards",
        "title": "GPU",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


# ---------------------------------------------------------------------------- variables


def _source_variable() -> Json:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "regex": "",
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "refresh": 1,
        "skipUrlSync": False,
        "current": {},
        "options": [],
    }


def _variable(variable: Variable) -> Json:
    query = promql(f"label_values({variable.selector}, <{variable.key}>)")
    # Not every workload has every label; .* also matches a missing label.
    everything = {"allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.title,
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{variable.name}", "qryType": 1},
        "regex": "",
        "hide": 0,
        "includeAll": variable.several,
        "multi": variable.several,
        # Load the values again when the time range changes.
        "refresh": 2,
        "skipUrlSync": False,
        "sort": 1,
        "options": [],
        **(everything if variable.several else {"current": {}}),
    }


# ---------------------------------------------------------------------------- layout


def _panels(dashboard: Dashboard) -> Iterator[Json]:
    number, top = 1, 0
    for section in dashboard.sections:
        row = {"type": "row", "title": section.title, "collapsed": False, "panels": []}
        row |= {"repeat": section.repeat} if section.repeat else {}
        yield {"id": number, "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}, **row}
        number, top = number + 1, top + 1
        left = tallest = 0
        for panel in section.panels:
            if left + panel.width > COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": number, "gridPos": place, **_panel(panel, dashboard.scope)}
            number, left, tallest = number + 1, left + panel.width, max(tallest, panel.height)
        top += tallest


# ---------------------------------------------------------------------------- panels


def _panel(panel: Panel, scope: str) -> Json:
    found = {
        "type": _TYPES[panel.draw],
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "targets": [_target(panel.draw, letter, query, scope) for letter, query in _lettered(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": _options(panel.draw),
    }
    return found | ({"transformations": _transformations(panel)} if panel.draw is Draw.TABLE else {})


def _lettered(queries: tuple[Query, ...]) -> Iterator[tuple[str, Query]]:
    return zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", queries, strict=False)


def _target(draw: Draw, letter: str, query: Query, scope: str) -> Json:
    at_once = draw in _AT_ONCE
    return {
        "refId": letter,
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": promql(query.expr, scope),
        "legendFormat": promql(query.legend) or "__auto",
        "format": "table" if draw is Draw.TABLE else "time_series",
        "instant": at_once,
        "range": not at_once,
    }


def _defaults(panel: Panel) -> Json:
    found: Json = {"unit": panel.unit.value, "color": {"mode": "palette-classic"}, "thresholds": _thresholds(panel)}
    if panel.alarm is not None or panel.draw is Draw.STAT:
        found["color"] = {"mode": "thresholds"}
    if panel.top is not None:
        found |= {"min": 0, "max": panel.top}
    if panel.draw in (Draw.LINES, Draw.STACK):
        stacked = panel.draw is Draw.STACK
        found["color"] = {"mode": "palette-classic"}
        found["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 60 if stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "axisSoftMin": 0,
            "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "off" if panel.alarm is None else "line"},
        }
    if panel.draw is Draw.TABLE:
        found["custom"] = {"align": "auto", "filterable": True, "cellOptions": {"type": "auto"}}
        del found["unit"]
    return found


def _thresholds(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "blue" if panel.alarm is None else "green", "value": None}]
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    return {"mode": "absolute", "steps": steps}


def _overrides(panel: Panel) -> Iterator[Json]:
    for name, color in panel.colors:
        yield _override(name, {"color": {"mode": "fixed", "fixedColor": color}})
    for column in panel.columns:
        own: Json = {"unit": column.unit.value}
        if column.link:
            own["links"] = [{"title": "Show", "url": column.link, "targetBlank": False}]
        yield _override(column.title, own)


def _override(name: str, properties: Json) -> Json:
    found = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": found}


def _transformations(panel: Panel) -> list[Json]:
    """Merge the rows of all queries with the same labels, and order the columns."""
    # With several queries Grafana names each value by the letter of its query.
    values = {
        letter: f"Value #{letter}" if len(panel.queries) > 1 else "Value" for letter, _ in _lettered(panel.queries)
    }
    names = [values.get(column.of) or promql(f"<{column.of}>") for column in panel.columns]
    titles = [column.title for column in panel.columns]
    organize = {
        "excludeByName": {"Time": True},
        "indexByName": {name: number for number, name in enumerate(names)},
        "renameByName": dict(zip(names, titles, strict=True)),
    }
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]


def _options(draw: Draw) -> Json:
    match draw:
        case Draw.STAT:
            return {
                "reduceOptions": _LAST,
                "orientation": "auto",
                "textMode": "auto",
                "wideLayout": True,
                "colorMode": "value",
                "graphMode": "none",
                "justifyMode": "auto",
            }
        case Draw.BARS:
            return {
                "reduceOptions": _LAST,
                "orientation": "horizontal",
                "displayMode": "basic",
                "valueMode": "color",
                "namePlacement": "auto",
                "showUnfilled": True,
                "sizing": "auto",
            }
        case Draw.TABLE:
            return {"showHeader": True, "cellHeight": "sm"}
    return {
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
