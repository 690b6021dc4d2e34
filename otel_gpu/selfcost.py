"""What the agent itself costs: the only use of psutil."""

from __future__ import annotations

import psutil


class SelfCost:
    """CPU time and memory of this process; ``None`` where the system does not tell."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def cpu_s(self) -> float | None:
        """User and system time of all threads, in seconds."""
        try:
            times = self._process.cpu_times()
        except (psutil.Error, OSError):
            return None
        return float(times.user + times.system)

    def memory_bytes(self) -> int | None:
        """Resident memory."""
        try:
            return int(self._process.memory_info().rss)
        except (psutil.Error, OSError):
            return None
