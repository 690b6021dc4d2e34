"""Checks of the agent's state directory and control socket. Nothing is created or changed."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.config.values import ControlSocket, StateDir
from otel_gpu.doctor.findings import Finding, degraded, ok, unused
from otel_gpu.sources.proc.host import read_boot_id
from otel_gpu.sources.unix_socket import NO_LISTENER, connect, failure_reason, impostor
from otel_gpu.state.files import lock_problem
from otel_gpu.state.recovery import LOCK, STATE

_STATE_FIX: Final = "--state-dir /var/lib/otel-gpu; in a systemd unit StateDirectory=otel-gpu"
_CONTROL_FIX: Final = (
    "in a systemd unit RuntimeDirectory=otel-gpu; in a container: docker run --tmpfs "
    "/run/otel-gpu:mode=0700,uid=UID …; or --control-socket PATH"
)
_COUNTERS_LOST: Final = "counters start at 0 at every start of the agent"
_JOURNAL: Final = "journal-"
_REJECTED: Final = ".rejected"


# ---------------------------------------------------------------------------- state


def check_state_directory(chosen: StateDir, environment: Mapping[str, str], proc_root: Path, clock: Clock) -> Finding:
    """Check whether counters of an agent with this user and environment survive a restart."""
    path = chosen.place(environment)
    if path is None:
        return unused("state", f"none: {_COUNTERS_LOST}", _STATE_FIX)
    if read_boot_id(proc_root) is None:
        found = f"{proc_root}/sys/kernel/random/boot_id is not readable: {_COUNTERS_LOST}"
        return degraded("state", found, "mount a complete /proc: mount -t proc proc /proc")
    problem = _directory_problem(path)
    if problem is not None:
        return degraded("state", f"{path}: {problem[0]}; {_COUNTERS_LOST}", problem[1])
    if not path.is_dir():
        return ok("state", f"{path}: does not exist yet; the agent can create it")
    return _saved_state(path, clock)


def _directory_problem(path: Path) -> tuple[str, str] | None:
    """Why an agent of this user cannot use the directory, and the fix."""
    quoted = shlex.quote(str(path))
    try:
        status = path.lstat()
    except FileNotFoundError:
        return _creation_problem(path)
    except OSError as error:
        return (error.strerror or str(error)).lower(), f"to inspect: ls -ld {quoted}"
    user = os.geteuid()
    problem = None
    if stat.S_ISLNK(status.st_mode):
        problem = "it is a symbolic link", f"--state-dir {shlex.quote(os.path.realpath(path))}"
    elif not stat.S_ISDIR(status.st_mode):
        problem = "it is not a directory", f"rm {quoted}, or --state-dir PATH"
    elif status.st_uid != user:
        found = f"it belongs to user {status.st_uid}, and doctor runs as user {user}"
        problem = found, f"as root: chown -R {user} {quoted}; or run doctor as the agent's user"
    elif not _may_write(path):
        problem = "it is not writable", f"chmod 700 {quoted}; in a container, mount it without readOnly"
    return problem


def _creation_problem(path: Path) -> tuple[str, str] | None:
    above = next(parent for parent in path.parents if parent.exists())
    if _may_write(above):
        return None
    quoted = shlex.quote(str(path))
    return (
        f"it does not exist and cannot be created in {above}",
        f"as root: install -d -o {os.geteuid()} -m 700 {quoted}",
    )


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _saved_state(path: Path, clock: Clock) -> Finding:
    """The files of an earlier or running agent."""
    lock = path / LOCK
    try:
        names = sorted(entry.name for entry in path.iterdir())
        saved = (path / STATE).lstat() if STATE in names else None
        problem = lock_problem(lock.lstat()) if LOCK in names else None
    except OSError as error:
        return degraded("state", f"{path}: {error.strerror}", f"ls -la {shlex.quote(str(path))}")
    if problem is not None:
        return degraded("state", f"{lock}: {problem}; {_COUNTERS_LOST}", f"rm {shlex.quote(str(lock))}")
    found = ["nothing is saved yet"]
    if saved is not None:
        age_s = max(0.0, clock.wall_ns() / 1e9 - saved.st_mtime)
        found = [f"saved {age_s:.0f} s ago, {saved.st_size / 1024:.0f} KiB"]
    elif any(name.startswith(_JOURNAL) for name in names):
        found = ["a journal without a checkpoint"]
    rejected = [name for name in names if name.endswith(_REJECTED)]
    if rejected:
        found.append(f"{', '.join(rejected)} was damaged and set aside")
    fix = f"none needed; after inspection: rm {shlex.quote(str(path / rejected[0]))}" if rejected else None
    return ok("state", f"{path}: {'; '.join(found)}", fix)


# ---------------------------------------------------------------------------- control


def check_control_socket(chosen: ControlSocket, environment: Mapping[str, str]) -> Finding:
    """Check whether ``otel-gpu pause`` reaches an agent, or would reach one started with these settings."""
    places = chosen.client_paths(environment)
    if not places:
        return unused("control", "none: otel-gpu pause is not available", "--control-socket auto")
    refused = {}
    for place in places:
        outcome = _connect(place)
        if outcome is True:
            return ok("control", f"an agent listens at {place}")
        if outcome is not None:
            refused[place] = outcome
    if refused:
        found = "; ".join(f"{place}: {why}" for place, why in refused.items())
        inspect = f"ls -l {' '.join(shlex.quote(str(place)) for place in refused)}"
        fix = f"run this as root, or as the agent's user; to inspect: {inspect}"
        return degraded("control", f"an agent cannot be reached: {found}", fix)
    return _check_new_socket(places)


def _connect(place: Path) -> bool | str | None:
    """True if an agent listens there, ``None`` if nothing does, the reason if it cannot be reached or accepted."""
    try:
        with connect(place) as connection:
            return impostor(connection, place) or True
    except NO_LISTENER:
        return None
    except OSError as error:
        return failure_reason(error)


def _check_new_socket(places: Sequence[Path]) -> Finding:
    """Whether an agent could listen at the first of these places: in a directory that no other user can write to."""
    place, directory = places[0], places[0].parent
    try:
        status = directory.lstat()
    except FileNotFoundError:
        if _may_write(directory.parent):
            return ok("control", f"no agent is running; it would listen at {place}")
        found = f"{directory} does not exist and cannot be created in {directory.parent}"
        return degraded("control", f"otel-gpu pause would not reach an agent: {found}", _CONTROL_FIX)
    except OSError as error:
        return degraded("control", f"{directory}: {error.strerror}", _CONTROL_FIX)
    problem = None
    if not stat.S_ISDIR(status.st_mode):
        problem = "it is not a directory"
    elif status.st_uid not in (0, os.geteuid()):
        problem = f"it belongs to user {status.st_uid}"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "other users can write to it"
    elif not _may_write(directory):
        problem = "it is not writable"
    if problem is None:
        return ok("control", f"no agent is running; it would listen at {place}")
    return degraded("control", f"otel-gpu pause would not reach an agent: {directory}: {problem}", _CONTROL_FIX)
