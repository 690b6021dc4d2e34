"""Errors of a fleet run without a result."""

from __future__ import annotations


class FleetError(Exception):
    """One line for the user: a part that did not start, or that ended unexpectedly."""
