"""Output formats: OTLP, Prometheus text, JSON, tables."""
