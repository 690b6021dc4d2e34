"""Seeded random inputs for everything that reads untrusted data: ``python -m tests.fuzz``."""
