"""otel-gpu: who is using the GPU, how much, at what cost, and who is only sitting on it."""

__version__ = "0.1.0.dev0"
