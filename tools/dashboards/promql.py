"""PromQL in the names of the catalogue: ``sum(<hw.power>)``. A name that is not there fails, so nothing goes stale."""

from __future__ import annotations

import re
from typing import Final

from otel_gpu.metrics.catalogue import BY_NAME, METRICS
from otel_gpu.metrics.labels import IDENTITY_KEYS
from otel_gpu.metrics.names import label_name, prometheus_name

# Of the host's Resource those that every series has on both routes, from the agent and from a Collector. k8s.node.name
# is not always known, and service.* is not on workloads.
HOST_KEYS: Final = ("host.name", "host.id")

KEYS: Final = frozenset((*HOST_KEYS, *IDENTITY_KEYS)).union(*(metric.keys for metric in METRICS))
"""Every attribute that a query may name."""

_NAME: Final = re.compile(r"<([a-z0-9_.]+)>(\{[^{}]*\})?")


def promql(text: str, scope: str = "") -> str:
    """Put Prometheus's names in place of ``<name.of.a.metric>`` and ``<key.of.an.attribute>``.

    Every metric is asked for within ``scope``, which is written as what stands between a selector's braces.
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
