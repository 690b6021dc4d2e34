"""What can go wrong with a fleet before there is a result."""

from __future__ import annotations


class FleetError(Exception):
    """One line for whoever runs it: what did not start, or ended by itself."""
