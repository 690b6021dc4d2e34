"""Variables, colours and links of several dashboards."""

from __future__ import annotations

from typing import Final

from tools.dashboards.model import Colors, Variable

HOSTS: Final = Variable("host", "Host", "<otel_gpu.series>", "host.name")

MEMORY_COLORS: Final[Colors] = (
    ("measured", "green"),
    ("inferred", "yellow"),
    ("unattributed", "red"),
    ("reserved", "purple"),
    ("free", "#8e8e8e"),
)
METHOD_COLORS: Final[Colors] = (("measured", "green"), ("estimated", "blue"), ("inferred", "yellow"))
STATE_COLORS: Final[Colors] = (("busy", "green"), ("idle", "orange"), ("allocated", "purple"), ("unknown", "#8e8e8e"))
ENERGY_COLORS: Final[Colors] = (("attributed", "green"), ("idle", "orange"), ("unattributed", "red"))

_SAME_TIME: Final = "${datasource:queryparam}&${__url_time_range}"
_SAME_HOST: Final = f"${{host:queryparam}}&{_SAME_TIME}"
TO_NODE: Final = f"/d/otel-gpu-node?var-host=${{__value.text}}&{_SAME_TIME}"
TO_NAMESPACE: Final = f"/d/otel-gpu-workload?var-namespace=${{__value.text}}&{_SAME_HOST}"
TO_WORKLOAD: Final = f"/d/otel-gpu-workload?var-workload=${{__value.text}}&{_SAME_HOST}"

HERE: Final = " and group by () (<gpu.workload.access> == 1)"
"""Workloads with a GPU now. Ended workloads have series with final totals until the retention ends."""


def each(keys: str, figure: str) -> str:
    """The expression with these keys in place of each empty `` by ()``."""
    return figure.replace(" by ()", f" by ({keys})")
