"""What the doctor says of what an agent keeps here: its state directory and its control socket. Nothing is changed."""

from __future__ import annotations

import os
import shlex
import socket
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.control.socket_path import ControlSocket
from otel_gpu.doctor.findings import Finding, degraded, ok, unused
from otel_gpu.settings_state import StateDir
from otel_gpu.sources.proc.host import read_boot_id
from otel_gpu.state.recovery import STATE

_STATE_FIX: Final = "--state-dir /var/lib/otel-gpu; in a unit StateDirectory=otel-gpu"
_CONTROL_FIX: Final = (
    "in a unit RuntimeDirectory=otel-gpu; in a container: docker run --tmpfs /run/otel-gpu:mode=0700,uid=UID …; or "
    "--control-socket PATH"
)
_CONNECT_S: Final = 1.0
_JOURNAL: Final = "journal-"
_REJECTED: Final = ".rejected"


# ---------------------------------------------------------------------------- state


def examine_state(chosen: StateDir, environment: Mapping[str, str], proc_root: Path, clock: Clock) -> Finding:
    """Judge whether counters of an agent with this user and environment would go on over restarts."""
    path = chosen.place(environment)
    if path is None:
        return unused("state", "none: counters start at 0 with every start of the agent", _STATE_FIX)
    if read_boot_id(proc_root) is None:
        found = f"{proc_root}/sys/kernel/random/boot_id does not tell which boot this is: nothing is kept"
        return degraded("state", found, "mount /proc whole: mount -t proc proc /proc")
    wrong = _wrong_with(path)
    if wrong is not None:
        return degraded("state", f"{path}: {wrong[0]}; counters start at 0 with every start of the agent", wrong[1])
    if not path.is_dir():
        return ok("state", f"{path}: not there yet, and can be made")
    return _kept(path, clock)


def _wrong_with(path: Path) -> tuple[str, str] | None:
    """Why an agent of this user would not take that directory, and what to do."""
    quoted = shlex.quote(str(path))
    try:
        status = path.lstat()
    except FileNotFoundError:
        return _cannot_make(path)
    except OSError as error:
        return (error.strerror or str(error)).lower(), f"what is there: ls -ld {quoted}"
    user = os.geteuid()
    wrong = None
    if stat.S_ISLNK(status.st_mode):
        wrong = "it is a symbolic link", f"--state-dir {shlex.quote(os.path.realpath(path))}"
    elif not stat.S_ISDIR(status.st_mode):
        wrong = "it is no directory", f"rm {quoted}, or --state-dir PATH"
    elif status.st_uid != user:
        found = f"it belongs to user {status.st_uid}, and this is user {user}"
        wrong = found, f"as root: chown -R {user} {quoted}; or ask as the agent's user"
    elif not _may_write(path):
        wrong = "it is not writable", f"chmod 700 {quoted}; in a container, mount it without readOnly"
    return wrong


def _cannot_make(path: Path) -> tuple[str, str] | None:
    above = next(parent for parent in path.parents if parent.exists())
    if _may_write(above):
        return None
    quoted = shlex.quote(str(path))
    return f"it is not there, and cannot be made in {above}", f"as root: install -d -o {os.geteuid()} -m 700 {quoted}"


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _kept(path: Path, clock: Clock) -> Finding:
    """What is there of an earlier agent, or of one that runs."""
    try:
        names = sorted(entry.name for entry in path.iterdir())
        saved = (path / STATE).lstat() if STATE in names else None
    except OSError as error:
        return degraded("state", f"{path}: {error.strerror}", f"ls -la {shlex.quote(str(path))}")
    told = ["nothing is saved yet"]
    if saved is not None:
        age_s = max(0.0, clock.wall_ns() / 1e9 - saved.st_mtime)
        told = [f"saved {age_s:.0f} s ago, {saved.st_size / 1024:.0f} KiB"]
    elif any(name.startswith(_JOURNAL) for name in names):
        told = ["a journal, not yet saved whole"]
    rejected = [name for name in names if name.endswith(_REJECTED)]
    if rejected:
        told.append(f"{', '.join(rejected)} was damaged and set aside")
    fix = f"none needed; once it was looked at: rm {shlex.quote(str(path / rejected[0]))}" if rejected else None
    return ok("state", f"{path}: {'; '.join(told)}", fix)


# ---------------------------------------------------------------------------- control


def examine_control(chosen: ControlSocket, environment: Mapping[str, str]) -> Finding:
    """Judge whether ``otel-gpu pause`` reaches an agent, or would if one were started like this."""
    places = chosen.client_paths(environment)
    if not places:
        return unused("control", "no control socket: otel-gpu pause cannot be used", "--control-socket auto")
    refused = []
    for place in places:
        heard = _heard(place)
        if heard is True:
            return ok("control", f"an agent listens at {place}")
        if heard is not None:
            refused.append(f"{place}: {heard}")
    if refused:
        return degraded("control", f"an agent cannot be reached: {'; '.join(refused)}", "ask as root, or as its user")
    return _room(places)


def _heard(place: Path) -> bool | str | None:
    """Whether somebody listens there; ``None`` for nobody, words for somebody who cannot be reached."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_S)
        try:
            connection.connect(os.fspath(place))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return None
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return True


def _room(places: Sequence[Path]) -> Finding:
    """Whether an agent could listen at the first of these places: in a directory that nobody else writes to."""
    place, directory = places[0], places[0].parent
    try:
        status = directory.lstat()
    except FileNotFoundError:
        if _may_write(directory.parent):
            return ok("control", f"no agent runs; one would listen at {place}")
        found = f"{directory} is not there, and cannot be made in {directory.parent}"
        return degraded("control", f"otel-gpu pause would not reach an agent: {found}", _CONTROL_FIX)
    except OSError as error:
        return degraded("control", f"{directory}: {error.strerror}", _CONTROL_FIX)
    wrong = None
    if not stat.S_ISDIR(status.st_mode):
        wrong = "it is no directory"
    elif status.st_uid not in (0, os.geteuid()):
        wrong = f"it belongs to user {status.st_uid}"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = "others may write to it"
    elif not _may_write(directory):
        wrong = "it is not writable"
    if wrong is None:
        return ok("control", f"no agent runs; one would listen at {place}")
    return degraded("control", f"otel-gpu pause would not reach an agent: {directory}: {wrong}", _CONTROL_FIX)
