"""Who is booked to which lines, and when each was last seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from otel_gpu.attribution.lines import Entry
from otel_gpu.attribution.places import ProcessAt, ProcessLine, WorkloadLine
from otel_gpu.model import WorkloadRef


@dataclass(slots=True, eq=False)
class Seen:
    """When somebody was last seen (monotonic): one for all who are seen together, since they are so in most cycles."""

    at_ns: int


@dataclass(slots=True, eq=False)
class Booking:
    """Which lines a process is booked to. ``ref`` is its workload as first seen; the times are monotonic.

    Lines are names, and looking one up takes longer than what is then booked: their entries are kept beside them.
    """

    ref: WorkloadRef
    process: ProcessLine
    workload: WorkloadLine
    process_entry: Entry
    workload_entry: Entry
    seen: Seen
    ended_ns: int | None = None


Present: TypeAlias = tuple[tuple[ProcessAt, Booking], ...]
"""Everybody who is on a GPU, in order: the same object for as long as they are the same."""
