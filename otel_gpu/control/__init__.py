"""The control socket of a running agent: ``otel-gpu pause`` and ``otel-gpu resume``."""
