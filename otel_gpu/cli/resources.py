"""The Resource of what a command exports or prints."""

from __future__ import annotations

import logging
import os

from otel_gpu.agent.resources import host_resources, taken_keys
from otel_gpu.config import Config
from otel_gpu.config.groups import Environment
from otel_gpu.metrics.labels import Resources
from otel_gpu.model import Pod

log = logging.getLogger(__name__)


def resources_of(config: Config, pod: Pod | None = None) -> Resources:
    """The host's Resource, and the keys of workloads. Configured attributes with a key of a metric are left out."""
    export, names = config.export, config.names
    # A workload may have these keys: an attribute of the host must not replace them.
    extra_keys = names.extra_keys(slurm=names.environment in {Environment.AUTO, Environment.SLURM})
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


def host_name(resources: Resources) -> str | None:
    """The name of the host."""
    return resources.shared.get("host.name")
