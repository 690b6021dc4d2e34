"""Cycles of this host: the engine of ``run`` and ``once``, without anybody to export to and without a state kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, Final

from otel_gpu.agent.host import Host, open_host
from otel_gpu.agent.sampling import Sampling
from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.errors import OtelGpuError, Unavailable
from otel_gpu.export.document import document
from otel_gpu.model import Report, SourceState
from otel_gpu.top.board import Board
from otel_gpu.top.cycle import combine
from otel_gpu.version import __version__
from otel_gpu.web.history import History
from otel_gpu.web.particulars import About, particulars

_WAIT_S: Final = 0.5
_UPGRADED: Final = "the driver was upgraded while top ran; start it again"


class LocalCycles:
    """Samples this host on a thread of its own, so that a driver that takes its time holds up nobody who types."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        board: Board,
        host_name: str,
        opened: Callable[[Config, Clock], Host] = open_host,
    ) -> None:
        self._config, self._clock, self._board, self._host_name = config, clock, board, host_name
        self._open = opened
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-gpu-top", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self, timeout_s: float = 3.0) -> None:
        """End, and let go of the driver if it lets go within this time."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._sample(self._open(self._config, self._clock))
        except OtelGpuError as error:
            self._board.fail(error)
        except Exception as error:  # a bug is told in a line like everything else
            self._board.fail(Unavailable(f"internal error: {type(error).__name__}: {error}"))

    def _sample(self, host: Host) -> None:
        sampling = Sampling(self._config, host, self._clock)
        prices = self._config.attribution.prices
        about = About(
            version=__version__,
            host_name=self._host_name,
            interval_s=self._config.interval_s,
            simulated_because=host.simulated_because,
            currency=None if prices is None else prices.currency,
        )
        cycles, history = 0, History()
        try:
            sampling.start()
            while not self._stop.is_set():
                if host.outdated.is_set():
                    raise Unavailable(_UPGRADED)
                seen = sampling.sampler.wait_for_cycle(cycles, _WAIT_S)
                attribution = sampling.engine.latest
                if seen > cycles and attribution is not None:
                    _refuse_blindness(attribution, host, first=not cycles)
                    history.observe(attribution)
                    beside = particulars(attribution, about, _plain(history))
                    self._board.put(combine(document(attribution), beside))
                cycles = seen
        finally:
            sampling.stop()


def _plain(history: History) -> dict[str, Any]:
    """As it comes out of JSON: tuples are lists there."""
    plain: dict[str, Any] = json.loads(json.dumps(history.document()))
    return plain


def _refuse_blindness(attribution: Report, host: Host, *, first: bool) -> None:
    """Unavailable if there is no GPU to begin with; one that is lost later is shown as lost."""
    nvml = next(source for source in attribution.sources if source.name == host.gpus.name)
    if first and nvml.state is SourceState.UNAVAILABLE and not attribution.gpus:
        raise Unavailable(nvml.reason or "no GPU answers")
