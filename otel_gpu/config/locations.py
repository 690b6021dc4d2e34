"""The values of ``state-dir`` and ``control-socket``, and the paths that ``auto`` stands for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_gpu.config.values import absolute_path

_SOCKET_NAME: Final = "control.sock"
_DEFAULT_SOCKET: Final = Path("/run/otel-gpu") / _SOCKET_NAME
_MAX_SOCKET_BYTES: Final = 107  # unix(7): sun_path has 108 bytes, the last of which is zero


@dataclass(frozen=True, slots=True)
class StateDir:
    """The setting ``state-dir``: a directory, none (neither), or ``auto``: the first suitable directory.

    With ``auto``, a host without a suitable directory is not worth a warning.
    """

    path: Path | None = None
    auto: bool = False

    def place(self, environment: Mapping[str, str]) -> Path | None:
        """The directory that systemd created for the unit, else the user's directory for state; ``None`` for none.

        systemd.exec(5): STATE_DIRECTORY has directories separated by colons, in the order of the unit. With
        DynamicUser= it is a link to a directory below /var/lib/private, which is followed. The XDG Base Directory
        Specification ignores relative paths.
        """
        if not self.auto:
            return self.path
        of_unit = environment.get("STATE_DIRECTORY", "").split(":")[0]
        of_user, home = environment.get("XDG_STATE_HOME", ""), environment.get("HOME", "")
        if of_unit.startswith("/"):
            return Path(of_unit).resolve()
        if of_user.startswith("/"):
            return Path(of_user) / "otel-gpu"
        return Path(home) / ".local/state/otel-gpu" if home.startswith("/") else None


def parse_state_dir(text: str) -> StateDir:
    """Parse ``auto``, ``none`` or ``off``, or an absolute path. ValueError for anything else."""
    text = text.strip()
    if text in ("auto", "none", "off"):
        return StateDir(auto=text == "auto")
    return StateDir(absolute_path(text))


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
            paths.append(Path(runtime_directory) / _SOCKET_NAME)
        if session_directory.startswith("/"):
            paths.append(Path(session_directory) / "otel-gpu" / _SOCKET_NAME)
        paths.append(_DEFAULT_SOCKET)
        return tuple(path for path in dict.fromkeys(paths) if len(os.fsencode(path)) <= _MAX_SOCKET_BYTES)


def parse_control_socket(text: str) -> ControlSocket:
    """Parse ``auto``, ``none`` or an absolute path. ValueError for anything else."""
    text = text.strip()
    if text in ("auto", "none"):
        return ControlSocket(auto=text == "auto")
    path = Path(text)
    if "\0" in text or text.endswith("/") or not path.is_absolute() or len(os.fsencode(path)) > _MAX_SOCKET_BYTES:
        raise ValueError(text)
    return ControlSocket(path)
