"""Measurements a developer makes of the agent: not part of the package."""
