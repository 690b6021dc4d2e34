"""The path of the control socket, and the checks of its directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_gpu.errors import Unavailable

_NAME: Final = "control.sock"
_DEFAULT: Final = Path("/run/otel-gpu") / _NAME
_MAX_PATH_BYTES: Final = 107  # unix(7): sun_path has 108 bytes, the last of which is zero


@dataclass(frozen=True, slots=True)
class ControlSocket:
    """The setting ``control-socket``: a path, ``none`` (neither), or ``auto``: the first suitable path."""

    path: Path | None = None
    auto: bool = False

    def agent_path(self, environment: Mapping[str, str]) -> Path | None:
        """The path at which the agent listens; ``None`` for none."""
        path = next(iter(self.client_paths(environment)), None)
        # With DynamicUser= the runtime directory is a symbolic link to /run/private (systemd.exec(5)). This link
        # belongs to systemd and is followed. No other link is.
        if path is not None and self.auto and environment.get("RUNTIME_DIRECTORY", "").startswith("/"):
            return path.parent.resolve() / path.name
        return path

    def client_paths(self, environment: Mapping[str, str]) -> tuple[Path, ...]:
        """The paths at which an agent may listen, likeliest first. A client's environment is not the agent's."""
        if not self.auto:
            return () if self.path is None else (self.path,)
        paths = []
        # systemd.exec(5): directories separated by colons, in the order of the unit file.
        runtime_directory = environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
        session_directory = environment.get("XDG_RUNTIME_DIR", "")
        if runtime_directory.startswith("/"):
            paths.append(Path(runtime_directory) / _NAME)
        if session_directory.startswith("/"):
            paths.append(Path(session_directory) / "otel-gpu" / _NAME)
        paths.append(_DEFAULT)
        return tuple(path for path in dict.fromkeys(paths) if len(os.fsencode(path)) <= _MAX_PATH_BYTES)


def parse_control_socket(text: str) -> ControlSocket:
    """Parse ``auto``, ``none`` or an absolute path. ValueError for anything else."""
    text = text.strip()
    if text in ("auto", "none"):
        return ControlSocket(auto=text == "auto")
    path = Path(text)
    if "\0" in text or text.endswith("/") or not path.is_absolute() or len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise ValueError(text)
    return ControlSocket(path)


def open_directory(path: Path) -> int:
    """A descriptor of the socket's directory.

    OSError if it cannot be opened or is a symbolic link, Unavailable if another user could write to it.
    """
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_directory(path, os.fstat(directory))
    except Unavailable:
        os.close(directory)
        raise
    return directory


def _check_directory(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise Unavailable(f"{path} belongs to user {status.st_uid}; the control socket needs a directory of its own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unavailable(f"{path} is writable by other users; run chmod go-w {path}, or choose another directory")
