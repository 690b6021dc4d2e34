"""A host under observation: sampled in the background, laid out for instruments."""

from __future__ import annotations

import logging
import math
from typing import Final

from otel_gpu.attribution.naming import WAIT_CYCLES
from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.engine import Engine
from otel_gpu.gpu_log import GpuLog
from otel_gpu.host import Host
from otel_gpu.metrics.collect import collect
from otel_gpu.metrics.collection import Collection
from otel_gpu.metrics.points import Reading
from otel_gpu.metrics.readings import Readings
from otel_gpu.metrics.selfstats import SelfAccount, SelfStats
from otel_gpu.model import Report, SourceOutcome, SourceState
from otel_gpu.sampler import Sampler
from otel_gpu.scope import narrowed
from otel_gpu.selfcost import SelfCost
from otel_gpu.sources.beside import NOT_YET
from otel_gpu.state.keeper import Keeper

log = logging.getLogger(__name__)

_FIRST_ANSWER_S: Final = 10.0
"""By then a source has answered, or has said that it had no answer in time; one that has done neither hangs."""


class Sampling:
    """Engine, sampler and the agent's own account, made together and ended together. Nothing runs before ``start``.

    A source whose state changes is logged, and so is a GPU. With a ``keeper`` counters are kept over restarts.
    """

    def __init__(self, config: Config, host: Host, clock: Clock, keeper: Keeper | None = None) -> None:
        self._config, self._pod = config, host.pod
        self._keeper = keeper
        self.engine = Engine(
            gpus=host.gpus,
            processes=host.processes,
            names=host.names,
            lookout=host.lookout,
            clock=clock,
            options=config.attribution,
            rules=self._keeper,
            pod=host.pod,
        )
        cost = SelfCost()
        self.account = SelfAccount(started_ns=clock.wall_ns(), cpu_s=cost.cpu_s, memory_bytes=cost.memory_bytes)
        self.sampler = Sampler(self.engine, config.interval_s, on_sample=self._observe)
        self.readings = Readings(
            self._fresh, self.account, currency=config.currency, process_level=config.process_metrics
        )
        self._state_log = StateLog(max(WAIT_CYCLES, math.ceil(_FIRST_ANSWER_S / config.interval_s)))
        self._gpu_log = GpuLog(host.gpus.name)
        self._stopped = False

    def start(self) -> None:
        """Take the first sample and go on."""
        self.sampler.start()

    def stop(self) -> None:
        """Sample no more and let go of the driver; from now on there is nothing to read."""
        self._stopped = True
        self.sampler.stop()
        if self._keeper is not None:
            self._keeper.close()
        self.engine.close()

    def restored(self) -> Collection | None:
        """What had been counted when an earlier run's counters were taken up; ``None`` if none were."""
        attribution = None if self._keeper is None else self._keeper.restored
        if attribution is None:
            return None
        if self._pod is not None:
            attribution = narrowed(attribution, self._pod)
        # Of the agent itself nothing is taken up.
        nothing = SelfStats(started_ns=attribution.wall_ns)
        config = self._config
        return collect(Reading.of(attribution, nothing, currency=config.currency, process_level=config.process_metrics))

    def _observe(self, attribution: Report) -> None:
        self.account.observe(attribution)
        self._state_log.observe(attribution.sources)
        self._gpu_log.observe(attribution)

    def _fresh(self) -> Report | None:
        return None if self._stopped else self.sampler.fresh()


class StateLog:
    """One log line per change of a source's state, none while it stays.

    That a source has not answered yet is usual when it begins, and no news for so many cycles.
    """

    def __init__(self, patience_cycles: int = WAIT_CYCLES) -> None:
        self._patience_cycles = patience_cycles
        self._states: dict[str, SourceState] = {}
        self._waited: dict[str, int] = {}

    def observe(self, sources: tuple[SourceOutcome, ...]) -> None:
        """Log what changed since the last time."""
        for source in sources:
            if source.reason == NOT_YET:
                self._waited[source.name] = self._waited.get(source.name, 0) + 1
                if self._waited[source.name] <= self._patience_cycles:
                    continue
            before = self._states.get(source.name, SourceState.OK)
            state = SourceState.OK if source.by_gpu else source.state  # each GPU has a line of its own
            self._states[source.name] = state
            if state is before:
                continue
            extra = {"fields": {"source": source.name, "state": state.value, "reason": source.reason}}
            if state is SourceState.OK:
                if source.state is SourceState.OK:
                    extra["fields"]["reason"] = None
                    log.info("%s is ok again", source.name, extra=extra)
                else:  # not all of its GPUs are
                    extra["fields"]["state"] = source.state.value
                    log.info("%s answers again", source.name, extra=extra)
            elif state is SourceState.PAUSED:
                log.info("%s is %s", source.name, source.reason, extra=extra)
            else:
                log.warning("%s is %s: %s", source.name, state.value, source.reason, extra=extra)
