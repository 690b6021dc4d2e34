"""The Resources of what this host exports: attributes of the host, of the agent, and the keys of workloads."""

from __future__ import annotations

import logging
import os
import re
import socket
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from otel_gpu.bounded_io import read_file
from otel_gpu.config import Config
from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.labels import IDENTITY_KEYS, Resources
from otel_gpu.model import Pod
from otel_gpu.version import __version__

log = logging.getLogger(__name__)

_MAX_MACHINE_ID_BYTES: Final = 4096
_MACHINE_ID: Final = re.compile(r"[0-9a-f]{32}")
_NODE_VARIABLES: Final = ("K8S_NODE_NAME", "NODE_NAME")
_TAKEN: Final = frozenset(IDENTITY_KEYS).union(*(metric.keys for metric in METRICS))
_INSTANCES: Final = uuid.UUID("6f8a5c52-4f0e-5b0c-9d55-0d5c1f6f6b1e")
"""Namespace of ``service.instance.id``. By the semantic conventions it is a UUID that is stable over restarts."""


def resources_of(config: Config, pod: Pod | None = None) -> Resources:
    """The host's Resource, and the keys of workloads. Configured attributes with a key of a metric are left out."""
    export, names = config.export, config.names
    # A workload may have these keys: an attribute of the host must not replace them.
    extra_keys = names.extra_keys
    taken = taken_keys(export.resource_attributes, extra_keys)
    if taken:
        log.warning("resource-attributes %s are left out: metrics have attributes of that name", ", ".join(taken))
    return host_resources(
        service_name=export.service,
        given=export.resource_attributes,
        environment=os.environ,
        extra_keys=extra_keys,
        pod=pod,
    )


def host_resources(
    *,
    service_name: str,
    given: Mapping[str, str],
    environment: Mapping[str, str],
    extra_keys: tuple[str, ...] = (),
    etc: Path = Path("/etc"),
    pod: Pod | None = None,
) -> Resources:
    """The Resources of this host. Attributes of ``given`` (OTEL_RESOURCE_ATTRIBUTES) replace those that are detected.

    Attributes in ``taken_keys`` are left out. Workloads may have ``extra_keys`` in addition to the usual ones. The
    agents of several pods on one host are different instances, so ``pod`` is part of the id.
    """
    taken = taken_keys(given, extra_keys)
    given = {key: value for key, value in given.items() if key not in taken}
    node = next((environment[name] for name in _NODE_VARIABLES if environment.get(name)), None)
    shared = {
        "host.name": node or socket.gethostname(),
        "host.id": read_machine_id(etc),
        "k8s.node.name": node,
        **{key: value for key, value in given.items() if not key.startswith("service.")},
    }
    known = {key: value for key, value in shared.items() if value}
    where = known.get("host.id") or known["host.name"]
    instance = uuid.uuid5(_INSTANCES, f"{service_name}@{where if pod is None else f'{where}/{pod}'}")
    agent = {
        "service.instance.id": str(instance),
        "service.version": __version__,
        **{key: value for key, value in given.items() if key.startswith("service.")},
        "service.name": service_name,
    }
    return Resources(shared=known, agent=agent)


def taken_keys(given: Mapping[str, str], extra_keys: Iterable[str] = ()) -> tuple[str, ...]:
    """Keys that points or workloads have. As Prometheus labels of the host they would clash with those."""
    return tuple(sorted(_TAKEN.union(extra_keys).intersection(given)))


def read_machine_id(etc: Path) -> str | None:
    """The id of the host from machine-id(5); ``None`` if there is none."""
    try:
        return parse_machine_id(read_file(etc / "machine-id", _MAX_MACHINE_ID_BYTES).decode("ascii"))
    except (OSError, ValueError):  # ValueError: too large, or not ASCII
        return None


def parse_machine_id(text: str) -> str | None:
    """32 hexadecimal digits and a newline. A system that is being installed has ``uninitialized``, which is no id."""
    found = text.strip()
    return found if _MACHINE_ID.fullmatch(found) else None
