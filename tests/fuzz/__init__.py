"""Seeded random inputs through everything that reads what others wrote: ``python -m tests.fuzz``."""
