"""Sampling of one host: engine, background sampler, and readings for metrics, wired together."""

from __future__ import annotations

import logging
import math
from typing import Final

from otel_gpu.agent.engine import Engine
from otel_gpu.agent.gpu_log import GpuLog
from otel_gpu.agent.host import Host
from otel_gpu.agent.sampler import Sampler
from otel_gpu.agent.scope import narrowed
from otel_gpu.agent.self_usage import SelfUsage
from otel_gpu.agent.services import OnStop, Services
from otel_gpu.attribution.naming import WAIT_CYCLES
from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.metrics.agent_values import SelfAccount, SelfStats
from otel_gpu.metrics.collect import CycleMetrics, MetricCollector
from otel_gpu.metrics.series import Collection
from otel_gpu.model import Report, SourceOutcome, SourceState
from otel_gpu.sources.names.poller import NO_ANSWER_YET
from otel_gpu.state.persistent import PersistentAttributor

log = logging.getLogger(__name__)

_FIRST_ANSWER_S: Final = 10.0
"""A source answers or reports a timeout within this time. One that does neither hangs."""


class Sampling:
    """The engine, its sampler and the agent's own account. Nothing runs before ``start``.

    Changes of state of a source or a GPU are logged. With an ``attributor`` counters persist across restarts.
    """

    def __init__(
        self, config: Config, host: Host, clock: Clock, attributor: PersistentAttributor | None = None
    ) -> None:
        self._config, self._pod = config, host.pod
        self._attributor = attributor
        self.engine = Engine(
            gpus=host.gpus,
            processes=host.processes,
            names=host.names,
            discovery=host.discovery,
            clock=clock,
            options=config.attribution.options,
            rules=self._attributor,
            pod=host.pod,
        )
        usage = SelfUsage()
        self.account = SelfAccount(started_ns=clock.wall_ns(), cpu_s=usage.cpu_s, memory_bytes=usage.memory_bytes)
        self.sampler = Sampler(self.engine, config.sampling.interval_s, on_sample=self._observe)
        self.metrics = CycleMetrics(
            self._fresh, self.account, currency=config.attribution.currency, process_level=config.export.process_metrics
        )
        self._state_log = StateLog(max(WAIT_CYCLES, math.ceil(_FIRST_ANSWER_S / config.sampling.interval_s)))
        self._gpu_log = GpuLog(host.gpus.name)
        saved_state = () if attributor is None else (OnStop(attributor.close),)
        self._services = Services(OnStop(self.engine.close), *saved_state, self.sampler)
        self._stopped = False

    def start(self) -> None:
        """Start the sampler. The first cycle runs at once."""
        self._services.start()

    def stop(self) -> None:
        """Stop the sampler and release the driver. After that there is nothing to read."""
        self._stopped = True
        self._services.stop()

    def restored(self) -> Collection | None:
        """Metrics with the counters restored from an earlier run; ``None`` if none were restored."""
        report = None if self._attributor is None else self._attributor.restored
        if report is None:
            return None
        if self._pod is not None:
            report = narrowed(report, self._pod)
        # Counters of the agent itself are not restored.
        stats = SelfStats(started_ns=report.wall_ns)
        config = self._config
        collector = MetricCollector(
            lambda: stats, currency=config.attribution.currency, process_level=config.export.process_metrics
        )
        return collector.collect(report)

    def _observe(self, report: Report) -> None:
        self.account.observe(report)
        self._state_log.observe(report.sources)
        self._gpu_log.observe(report)

    def _fresh(self) -> Report | None:
        return None if self._stopped else self.sampler.fresh()


class StateLog:
    """Logs one line per change of a source's state.

    A source that has not answered yet is not logged for the first ``patience_cycles`` cycles.
    """

    def __init__(self, patience_cycles: int = WAIT_CYCLES) -> None:
        self._patience_cycles = patience_cycles
        self._states: dict[str, SourceState] = {}
        self._waited: dict[str, int] = {}

    def observe(self, sources: tuple[SourceOutcome, ...]) -> None:
        """Log what has changed since the last cycle."""
        for source in sources:
            if source.reason == NO_ANSWER_YET:
                self._waited[source.name] = self._waited.get(source.name, 0) + 1
                if self._waited[source.name] <= self._patience_cycles:
                    continue
            before = self._states.get(source.name, SourceState.OK)
            state = SourceState.OK if source.by_gpu else source.state  # GpuLog logs each GPU
            self._states[source.name] = state
            if state is before:
                continue
            extra = {"fields": {"source": source.name, "state": state.value, "reason": source.reason}}
            if state is SourceState.OK:
                if source.state is SourceState.OK:
                    extra["fields"]["reason"] = None
                    log.info("%s is ok again", source.name, extra=extra)
                else:  # some of its GPUs are not ok
                    extra["fields"]["state"] = source.state.value
                    log.info("%s answers again", source.name, extra=extra)
            elif state is SourceState.PAUSED:
                log.info("%s is %s", source.name, source.reason, extra=extra)
            else:
                log.warning("%s is %s: %s", source.name, state.value, source.reason, extra=extra)
