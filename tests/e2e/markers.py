"""Conditions under which end-to-end tests can run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from otel_gpu.sources.proc.host import pid_namespace_is_initial

needs_host_pid_namespace: Final = pytest.mark.skipif(
    pid_namespace_is_initial(Path("/proc")) is False,
    reason="needs the host's pid namespace: in another one the agent reports hidden processes",
)
