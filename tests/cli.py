"""Runs ``otel-gpu`` as a user would: in a process of its own, with a clean environment and a time limit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

_OURS: Final = (
    "OTEL_", "HOST_PROC", "HOST_SYS", "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR",
    "NVML_STUB_", "NO_COLOR", "LD_LIBRARY_PATH", "COLUMNS",
    "DOCKER_", "CONTAINER_", "KUBERNETES_", "K8S_", "NODE_NAME", "POD_", "STATE_DIRECTORY", "XDG_STATE_HOME",
)  # fmt: skip


# As otel_gpu.cli.logs has it: reading GPUs … 4 s
_PROGRESS: Final = re.compile(r"^.* (?:…|\\u2026) [0-9]+ s\b.*\n", re.MULTILINE)


def without_progress(stderr: str) -> str:
    """The stderr of a command without progress lines, which depend on the speed of the machine."""
    return _PROGRESS.sub("", stderr)


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without variables that the agent reads, and with ``extra``.

    By default there is no state directory and no control socket: tests must not share state, and agents would contend
    for the host's control socket.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    ours = {"OTEL_GPU_STATE_DIR": "none", "OTEL_GPU_CONTROL_SOCKET": "none", "RUNTIME_DIRECTORY": "/nonexistent/run"}
    return kept | ours | dict(extra or {})


def otel_gpu(
    *arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = 60, progress: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its progress lines are left out unless ``progress`` is set."""
    result = subprocess.run(
        command(*arguments),
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        encoding="utf-8",
    )
    if not progress:
        result.stderr = without_progress(result.stderr)
    return result


def once(environment: Mapping[str, str], form: str) -> str:
    """The output of ``otel-gpu once`` in a format."""
    result = otel_gpu("once", "--format", form, environment=environment)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


def command(*arguments: str) -> Sequence[str]:
    """The command line that starts ``otel-gpu`` from this checkout."""
    return [sys.executable, "-m", "otel_gpu", *arguments]


def restore_hangup() -> None:
    """For a child before exec: SIGHUP ends it, also where these tests run under nohup, which ignores it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
