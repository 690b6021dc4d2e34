"""``otel-gpu doctor``."""

from __future__ import annotations

import os
import sys
from typing import Final

from otel_gpu.cli.notices import show_progress
from otel_gpu.cli.stdio import stdout_paint, terminal_size, write
from otel_gpu.clock import SystemClock
from otel_gpu.config import Config, SourceChoice
from otel_gpu.doctor.checks import check_host
from otel_gpu.doctor.findings import is_blind, to_json, to_text
from otel_gpu.errors import UsageError

_DONE: Final = 0
_BLIND: Final = 1


def doctor(config: Config, *, form: str) -> int:
    """Check this host and print the findings as text or JSON."""
    if config.sampling.source is SourceChoice.SIM:
        raise UsageError("doctor checks this host; a simulated host (--source sim) has nothing to check")
    with show_progress("examining this host"):
        findings = check_host(config, SystemClock(), dict(os.environ))
    if form == "json":
        write(sys.stdout, to_json(findings) + "\n")
    else:
        write(sys.stdout, to_text(findings, stdout_paint(), terminal_size()[0] if sys.stdout.isatty() else None))
    return _BLIND if is_blind(findings) else _DONE
