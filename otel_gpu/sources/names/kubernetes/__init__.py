"""The Kubernetes API: names and labels of this node's pods, without a client library."""

from otel_gpu.sources.names.kubernetes.api import ApiServer, in_cluster
from otel_gpu.sources.names.kubernetes.source import KubernetesSource

__all__ = ["ApiServer", "KubernetesSource", "in_cluster"]
