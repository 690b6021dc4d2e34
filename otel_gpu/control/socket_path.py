"""Where the control socket is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NAME: Final = "control.sock"
_HOST: Final = Path("/run/otel-gpu") / _NAME
_LONGEST_BYTES: Final = 107  # unix(7): sun_path is 108 bytes, the last of which is zero


@dataclass(frozen=True, slots=True)
class ControlSocket:
    """What was chosen: a path; none at all; or ``auto``, whatever place there is."""

    path: Path | None = None
    auto: bool = False

    def for_agent(self, environment: Mapping[str, str]) -> Path | None:
        """Where the agent listens; ``None`` for nowhere."""
        place = next(iter(self.for_others(environment)), None)
        # The directory of a unit with DynamicUser= is a link to one below /run/private (systemd.exec(5)). It is
        # systemd's, and followed; nobody else's is.
        if place is not None and self.auto and environment.get("RUNTIME_DIRECTORY", "").startswith("/"):
            return place.parent.resolve() / place.name
        return place

    def for_others(self, environment: Mapping[str, str]) -> tuple[Path, ...]:
        """Where an agent may listen, the likeliest first: whoever asks has another environment than its unit."""
        if not self.auto:
            return () if self.path is None else (self.path,)
        places = []
        # systemd.exec(5): directories between colons, the first being the one named first in the unit.
        runtime = environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
        session = environment.get("XDG_RUNTIME_DIR", "")
        if runtime.startswith("/"):
            places.append(Path(runtime) / _NAME)
        if session.startswith("/"):
            places.append(Path(session) / "otel-gpu" / _NAME)
        places.append(_HOST)
        return tuple(place for place in dict.fromkeys(places) if len(os.fsencode(place)) <= _LONGEST_BYTES)


def control_socket(text: str) -> ControlSocket:
    """``auto``, ``none``, or an absolute path. ValueError for anything else."""
    text = text.strip()
    if text in ("auto", "none"):
        return ControlSocket(auto=text == "auto")
    path = Path(text)
    if "\0" in text or text.endswith("/") or not path.is_absolute() or len(os.fsencode(path)) > _LONGEST_BYTES:
        raise ValueError(text)
    return ControlSocket(path)
