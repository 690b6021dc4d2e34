"""NVML through nvidia-ml-py: the one home of ``pynvml``, of its units and of what its errors mean."""

from otel_gpu.sources.nvml.events import DEFAULT_WAIT_MS
from otel_gpu.sources.nvml.source import NvmlSource

__all__ = ["DEFAULT_WAIT_MS", "NvmlSource"]
