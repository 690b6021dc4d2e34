"""Docker and Podman: names of containers and the GPUs they were granted, from the engine that runs them."""

from otel_gpu.sources.names.docker.client import DockerTls
from otel_gpu.sources.names.docker.source import DockerSource

__all__ = ["DockerSource", "DockerTls"]
