"""Why the bench cannot run."""

from __future__ import annotations


class CostError(Exception):
    """The text is one line for the user."""
