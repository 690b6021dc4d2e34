"""PromQL with names of the catalogue: ``sum(<hw.power>)``. An unknown name raises LookupError."""

from __future__ import annotations

import re
from typing import Final

from otel_gpu.metrics.catalogue import BY_NAME, METRICS
from otel_gpu.metrics.labels import IDENTITY_KEYS
from otel_gpu.metrics.names import label_name, prometheus_name

# Attributes of the host's Resource on every series, from the agent and from a Collector. k8s.node.name is not always
# known, and workloads have no service.*.
HOST_KEYS: Final = ("host.name", "host.id")

KEYS: Final = frozenset((*HOST_KEYS, *IDENTITY_KEYS)).union(*(metric.keys for metric in METRICS))
"""Every attribute that a query may use."""

_NAME: Final = re.compile(r"<([a-z0-9_.]+)>(\{[^{}]*\})?")


def promql(text: str, scope: str = "") -> str:
    """Replace ``<name.of.a.metric>`` and ``<key.of.an.attribute>`` by the names in Prometheus.

    Every metric gets the matchers of ``scope``, written like the content of a selector's braces.
    """

    def named(found: re.Match[str]) -> str:
        name, braces = found[1], promql(found[2] or "")
        if name not in BY_NAME:
            return _label(name) + braces
        inside = ", ".join(filter(None, (promql(scope), braces.strip("{}"))))
        return prometheus_name(BY_NAME[name]) + (f"{{{inside}}}" if inside else "")

    return _NAME.sub(named, text)


def _label(key: str) -> str:
    if key not in KEYS:
        raise LookupError(f"<{key}> is neither a metric of the catalogue nor an attribute of one")
    return label_name(key)
