"""Docker and Podman: what a container is called, and which GPUs it was given, from the engine that runs it."""

from otel_gpu.sources.docker.client import DockerTls
from otel_gpu.sources.docker.source import DockerSource

__all__ = ["DockerSource", "DockerTls"]
