"""The ledger as plain data for a restart, and back. Monotonic times mean nothing to another run, so ages are saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from otel_gpu.attribution.accounts import Account, Accounts, Key, RunningTotals
from otel_gpu.attribution.activity import ActivityTracker
from otel_gpu.attribution.keys import ProcessOnDevice, WorkloadOnDevice, workload_on
from otel_gpu.attribution.ledger import Assignment, GpuAccount, Ledger
from otel_gpu.attribution.naming import Namings
from otel_gpu.attribution.saved_values import (
    number,
    optional,
    process_account_key_from,
    process_on_device_from,
    ref_from,
    ref_state,
    restoring,
    text,
    whole,
    workload_account_key_from,
    workload_on_device_from,
)


def ledger_state(ledger: Ledger, *, now_ns: int) -> dict[str, Any]:
    """Everything in the ledger but activity, as of ``now_ns`` (monotonic)."""
    return {
        "epoch_ns": ledger.epoch_ns,
        "processes": _accounts_state(ledger.processes, now_ns),
        "workloads": _accounts_state(ledger.workloads, now_ns),
        "devices": {
            uuid: [each.name, each.index, dict(each.profiles), each.attributed_mj, each.idle_mj, each.unattributed_mj]
            for uuid, each in sorted(ledger.gpus.items())
        },
        "namings": ledger.namings.to_state(),
        "bookings": [
            [at, ref_state(a.ref), a.process.key, a.workload.key, now_ns - a.last_seen_ns, _age_ns(a.ended_ns, now_ns)]
            for _, of_gpu in sorted(ledger.assignments.items(), key=lambda item: item[0])
            for at, a in sorted(of_gpu.items(), key=lambda item: item[0])
        ],
    }


def restore_ledger(ledger: Ledger, data: Any, *, now_ns: int) -> None:
    """Take over the ledger of an earlier run into an empty one; ValueError if the data is not a ledger.

    The time between the runs does not count: ended accounts are reported for the rest of their retention.
    """
    with restoring("ledger"):
        _restore_accounts(ledger.processes, data["processes"], process_account_key_from, process_on_device_from, now_ns)
        _restore_accounts(
            ledger.workloads, data["workloads"], workload_account_key_from, workload_on_device_from, now_ns
        )
        assignments = {}
        for at, ref, process, workload, unseen_ns, ended_ago_ns in data["bookings"]:
            assignments[process_on_device_from(at)] = Assignment(
                ref_from(ref),
                ledger.processes.by_key[process_account_key_from(process)],
                ledger.workloads.by_key[workload_account_key_from(workload)],
                last_seen_ns=now_ns - whole(unseen_ns),
                ended_ns=_ago(ended_ago_ns, now_ns),
            )
        ledger.restore(
            epoch_ns=whole(data["epoch_ns"]),
            gpus={text(uuid): _gpu_from(gpu) for uuid, gpu in data["devices"].items()},
            namings=Namings.from_state(data["namings"]),
            assignments=assignments,
        )
    for key, account in ledger.workloads.by_key.items():
        # In an early version, nested containers had other keys.
        if key.subject != workload_on(account.ref, key.subject.device):
            raise ValueError("ledger: an account of another workload")


def activity_state(ledger: Ledger) -> dict[str, Any]:
    """The activity of every account with a process on its device."""
    return {"processes": _activities_state(ledger.processes), "workloads": _activities_state(ledger.workloads)}


def restore_activity(ledger: Ledger, data: Any) -> None:
    """The counterpart of ``activity_state``, for a restored ledger; ValueError for any other data."""
    with restoring("activity"):
        for key, state in data["processes"]:
            ledger.processes.by_key[process_account_key_from(key)].activity = ActivityTracker.from_state(state)
        for key, state in data["workloads"]:
            ledger.workloads.by_key[workload_account_key_from(key)].activity = ActivityTracker.from_state(state)


def _activities_state(accounts: Accounts[Key]) -> list[list[Any]]:
    return sorted([key, each.activity.to_state()] for key, each in accounts.by_key.items() if each.activity is not None)


def _accounts_state(accounts: Accounts[Key], now_ns: int) -> dict[str, Any]:
    return {
        "entries": [
            [
                key,
                ref_state(account.ref),
                account.since_ns,
                account.name,
                account.start_time_s,
                _age_ns(account.ended_ns, now_ns),
                account.totals.to_state(),
            ]
            for key, account in sorted(accounts.by_key.items(), key=lambda item: item[0])
        ],
        "overflow": sorted(accounts.overflow),
        "retired": {uuid: totals.to_state() for uuid, totals in sorted(accounts.retired.items())},
        "gone": [[subject, wall_ns] for subject, wall_ns in accounts.dropped.items()],
        "gone_before_ns": accounts.dropped_before_ns,
    }


def _restore_accounts(
    accounts: Accounts[Key],
    data: Any,
    key_from: Callable[[Any], Key],
    subject_from: Callable[[Any], ProcessOnDevice] | Callable[[Any], WorkloadOnDevice],
    now_ns: int,
) -> None:
    for key_data, ref, since_ns, name, start_time_s, ended_ago_ns, totals in data["entries"]:
        key = key_from(key_data)
        accounts.by_key[key] = Account(
            key,
            ref=ref_from(ref),
            since_ns=whole(since_ns),
            name=optional(text, name),
            start_time_s=optional(number, start_time_s),
            ended_ns=_ago(ended_ago_ns, now_ns),
            totals=RunningTotals.from_state(totals),
        )
    accounts.overflow = {key_from(key) for key in data["overflow"]}
    if not accounts.overflow <= accounts.by_key.keys():
        raise ValueError("an overflow without an account")
    accounts.retired = {text(uuid): RunningTotals.from_state(totals) for uuid, totals in data["retired"].items()}
    accounts.dropped = {subject_from(subject): whole(wall_ns) for subject, wall_ns in data["gone"]}
    accounts.dropped_before_ns = whole(data["gone_before_ns"])


def _gpu_from(data: Any) -> GpuAccount:
    name, index, profiles, *amounts = data
    attributed_mj, idle_mj, unattributed_mj = map(whole, amounts)
    named = {text(mig): text(profile) for mig, profile in profiles.items()}
    return GpuAccount(text(name), optional(whole, index), named, attributed_mj, idle_mj, unattributed_mj)


def _age_ns(then_ns: int | None, now_ns: int) -> int | None:
    return None if then_ns is None else now_ns - then_ns


def _ago(age_ns: Any, now_ns: int) -> int | None:
    return None if age_ns is None else now_ns - whole(age_ns)
