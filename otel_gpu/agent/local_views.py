"""Views of this host for ``otel-gpu top``, without exporters or saved state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from otel_gpu.agent.host import Host, open_host, view_subject
from otel_gpu.agent.sampling import Sampling
from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.errors import OtelGpuError, Unavailable
from otel_gpu.model import Report, SourceState
from otel_gpu.top.latest import LatestView
from otel_gpu.view.builder import ViewBuilder

_WAIT_S: Final = 0.5
_UPGRADED: Final = "the driver was upgraded while top ran; start it again"


class LocalViews:
    """Samples this host on a thread of its own, so that a slow driver does not delay keys."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        latest: LatestView,
        host_name: str,
        opened: Callable[[Config, Clock], Host] = open_host,
    ) -> None:
        self._config, self._clock, self._latest, self._host_name = config, clock, latest, host_name
        self._open = opened
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-gpu-top", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def close(self, timeout_s: float = 3.0) -> None:
        """Stop, and wait at most this long for the driver to be released."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._sample(self._open(self._config, self._clock))
        except OtelGpuError as error:
            self._latest.fail(error)
        except Exception as error:  # a bug is reported in one line too
            self._latest.fail(Unavailable(f"internal error: {type(error).__name__}: {error}"))

    def _sample(self, host: Host) -> None:
        sampling = Sampling(self._config, host, self._clock)
        cycles, builder = 0, ViewBuilder(view_subject(self._config, host, self._host_name))
        try:
            sampling.start()
            while not self._stop.is_set():
                if host.outdated.is_set():
                    raise Unavailable(_UPGRADED)
                seen = sampling.sampler.wait_for_cycle(cycles, _WAIT_S)
                report = sampling.engine.latest
                if seen > cycles and report is not None:
                    if not cycles:
                        _require_gpus(report, host)
                    builder.observe(report)
                    self._latest.put(builder.build(report))
                cycles = seen
        finally:
            sampling.stop()


def _require_gpus(report: Report, host: Host) -> None:
    """Unavailable if the first cycle has no GPU. One that is lost later is shown as lost."""
    nvml = next(source for source in report.sources if source.name == host.gpus.name)
    if nvml.state is SourceState.UNAVAILABLE and not report.gpus:
        raise Unavailable(nvml.reason or "no GPU responds")
