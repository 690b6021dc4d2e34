"""The books as plain data, for a restart, and back. Monotonic times mean nothing to another run: ages are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from otel_gpu.attribution.bookings import Booking, Seen
from otel_gpu.attribution.ledger import DeviceSums, Ledger
from otel_gpu.attribution.lines import Entry, Gone, Lines, LineT
from otel_gpu.attribution.naming import Namings
from otel_gpu.attribution.places import Place, ProcessAt, WorkloadAt, workload_at
from otel_gpu.attribution.plain import (
    number,
    process_at_from,
    process_line_from,
    ref_from,
    ref_state,
    text,
    whole,
    workload_at_from,
    workload_line_from,
)
from otel_gpu.attribution.sums import Sums


def ledger_state(ledger: Ledger, *, now_ns: int) -> dict[str, Any]:
    """Everything in the books, as of ``now_ns`` (monotonic)."""
    return {
        "epoch_ns": ledger.epoch_ns,
        "processes": _lines_state(ledger.processes, now_ns),
        "workloads": _lines_state(ledger.workloads, now_ns),
        "devices": {
            uuid: [sums.name, sums.index, dict(sums.profiles), sums.attributed_mj, sums.idle_mj, sums.unattributed_mj]
            for uuid, sums in sorted(ledger.devices.items())
        },
        "namings": ledger.namings.to_state(),
        "bookings": [
            [at, ref_state(b.ref), b.process, b.workload, now_ns - b.seen.at_ns, _age_ns(b.ended_ns, now_ns)]
            for uuid in sorted(ledger.gpu_uuids)
            for at, b in sorted(ledger.bookings(uuid), key=lambda item: item[0])
        ],
    }


def restore_ledger(ledger: Ledger, data: Any, *, now_ns: int) -> None:
    """Take up the books of an earlier run; ValueError, and nothing done, if they are none.

    The time between the runs does not count: what ended is told of for the rest of the retention.
    """
    try:
        epoch_ns = whole(data["epoch_ns"])
        processes = _lines_from(data["processes"], process_line_from, process_at_from, now_ns)
        workloads = _lines_from(data["workloads"], workload_line_from, workload_at_from, now_ns)
        devices = {text(uuid): _device_from(sums) for uuid, sums in data["devices"].items()}
        namings = Namings.from_state(data["namings"])
        bookings = {}
        for at, ref, process, workload, unseen_ns, ended_ago_ns in data["bookings"]:
            lines = process_line_from(process), workload_line_from(workload)
            if lines[0] not in processes[0] or lines[1] not in workloads[0]:
                raise ValueError("books: a process without a line")
            entries = processes[0][lines[0]], workloads[0][lines[1]]
            times = Seen(now_ns - whole(unseen_ns)), _ago(ended_ago_ns, now_ns)
            bookings[process_at_from(at)] = Booking(ref_from(ref), *lines, *entries, *times)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError("these are no books") from error
    if any(line.at != workload_at(entry.ref, line.at.place) for line, entry in workloads[0].items()):
        raise ValueError("books: a line of somebody else")  # who is inside of a container had other ones once
    ledger.processes.restore(*processes)
    ledger.workloads.restore(*workloads)
    ledger.restore(epoch_ns=epoch_ns, devices=devices, namings=namings, bookings=bookings)


def _age_ns(then_ns: int | None, now_ns: int) -> int | None:
    return None if then_ns is None else now_ns - then_ns


def _ago(age_ns: Any, now_ns: int) -> int | None:
    return None if age_ns is None else now_ns - whole(age_ns)


def _lines_state(lines: Lines[LineT], now_ns: int) -> dict[str, Any]:
    return {
        "entries": [
            [
                line,
                ref_state(entry.ref),
                entry.since_ns,
                entry.name,
                entry.start_time_s,
                _age_ns(entry.ended_ns, now_ns),
                entry.sums.to_state(),
            ]
            for line, entry in sorted(lines.entries.items())
        ],
        "overflow": sorted(lines.overflow),
        "retired": {uuid: sums.to_state() for uuid, sums in sorted(lines.retired.items())},
        "gone": [[at, wall_ns] for at, wall_ns in lines.gone.at.items()],
        "gone_before_ns": lines.gone.before_ns,
    }


def _lines_from(
    data: Any,
    line_from: Callable[[Any], LineT],
    at_from: Callable[[Any], ProcessAt] | Callable[[Any], WorkloadAt],
    now_ns: int,
) -> tuple[dict[LineT, Entry], set[LineT], dict[str, Sums], Gone]:
    entries: dict[LineT, Entry] = {}
    for line, ref, since_ns, name, start_time_s, ended_ago_ns, sums in data["entries"]:
        whose = line_from(line)
        entries[whose] = Entry(
            whose,
            ref=ref_from(ref),
            since_ns=whole(since_ns),
            name=None if name is None else text(name),
            start_time_s=None if start_time_s is None else number(start_time_s),
            ended_ns=_ago(ended_ago_ns, now_ns),
            sums=Sums.from_state(sums),
        )
    overflow = {line_from(line) for line in data["overflow"]}
    if not overflow <= entries.keys():
        raise ValueError("books: an overflow without a line")
    retired = {text(uuid): Sums.from_state(sums) for uuid, sums in data["retired"].items()}
    places: dict[Place, Place] = {}  # thousands are gone from a few places, which are one object each as before
    gone: dict[ProcessAt | WorkloadAt, int] = {}
    for at, wall_ns in data["gone"]:
        who = at_from(at)
        gone[who._replace(place=places.setdefault(who.place, who.place))] = whole(wall_ns)
    return entries, overflow, retired, Gone(gone, whole(data["gone_before_ns"]))


def _device_from(data: Any) -> DeviceSums:
    name, index, profiles, *sums = data
    attributed_mj, idle_mj, unattributed_mj = map(whole, sums)
    named = {text(mig): text(profile) for mig, profile in profiles.items()}
    return DeviceSums(
        text(name), None if index is None else whole(index), named, attributed_mj, idle_mj, unattributed_mj
    )
