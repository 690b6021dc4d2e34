"""The page people open first: the table, kept current."""

from __future__ import annotations

from html import escape

from otel_gpu.export.table import render
from otel_gpu.model import Attribution

STYLE = """\
:root { color-scheme: light dark; }
body { margin: 2rem; font: 14px/1.5 ui-monospace, monospace; background: Canvas; color: CanvasText; }
pre { overflow-x: auto; font: inherit; }
nav { opacity: .7; }
a { color: LinkText; }
"""


def page(attribution: Attribution | None, *, simulated: bool, refresh_s: int, metrics: bool = False) -> str:
    """The page as HTML; everything a container controls is escaped. ``metrics`` says that ``/metrics`` is served."""
    table = (
        "the first sample is under way" if attribution is None else render(attribution, width=160, simulated=simulated)
    )
    paths = {"/api/attribution": "JSON", "/metrics": "metrics", "/healthz": "health", "/readyz": "readiness"}
    links = (f'<a href="{path}">{name}</a>' for path, name in paths.items() if metrics or path != "/metrics")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{refresh_s}">
<title>otel-gpu: who uses the GPU</title>
<link rel="stylesheet" href="/style.css">
</head>
<body>
<main><pre>{escape(table)}</pre></main>
<nav>{" · ".join(links)}</nav>
</body>
</html>
"""
