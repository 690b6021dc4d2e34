"""The setting for the state directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_gpu import values
from otel_gpu.setting import Setting


@dataclass(frozen=True, slots=True)
class StateDir:
    """The choice: a directory, none, or ``auto``, which is the first of several defaults, or none without a warning."""

    path: Path | None = None
    auto: bool = False

    def place(self, environment: Mapping[str, str]) -> Path | None:
        """The directory that systemd created for the unit, else the user's directory for state; ``None`` for none.

        systemd.exec(5): STATE_DIRECTORY has directories between colons, in the order of the unit. With DynamicUser= it
        is a link to a directory below /var/lib/private, which is followed. Paths of the XDG Base Directory
        Specification count only if they are absolute.
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


def state_dir(text: str) -> StateDir:
    """``auto``, ``none`` or ``off``, or an absolute path. ValueError for anything else."""
    text = text.strip()
    if text in ("auto", "none", "off"):
        return StateDir(auto=text == "auto")
    return StateDir(values.absolute_path(text))


STATE_SETTING: Final = Setting(
    "state-dir", "state_dir", "auto", state_dir, "auto, none, or an absolute path",
    "where counters are kept over restarts; auto: $STATE_DIRECTORY, else $XDG_STATE_HOME/otel-gpu, else "
    "~/.local/state/otel-gpu; none: nowhere",
)  # fmt: skip
