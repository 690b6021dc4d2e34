"""What works on this host and what does not, each with the exact fix: ``otel-gpu doctor``."""
