"""Diagnosis of this host: what works, what does not, and how to fix it (``otel-gpu doctor``)."""
