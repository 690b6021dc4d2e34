"""NVML through nvidia-ml-py: the only package that imports ``pynvml``, with its units and errors."""

from otel_gpu.sources.nvml.events import DEFAULT_WAIT_MS
from otel_gpu.sources.nvml.source import NvmlSource

__all__ = ["DEFAULT_WAIT_MS", "NvmlSource"]
