"""Sampling of one host: the background sampler, wired to its engine and to metrics, and the log of what changes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from otel_gpu.agent.engine import Engine, narrowed
from otel_gpu.agent.host import Host
from otel_gpu.agent.own_process import SelfUsage
from otel_gpu.agent.services import OnStop, Services
from otel_gpu.attribution.naming import WAIT_CYCLES
from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.metrics.agent_values import SelfAccount, SelfStats
from otel_gpu.metrics.collect import CycleMetrics, MetricCollector
from otel_gpu.metrics.series import Collection
from otel_gpu.model import GpuHealth, GpuReading, Report, SourceOutcome, SourceState
from otel_gpu.sources.names.poller import NO_ANSWER_YET
from otel_gpu.state.persistent import PersistentAttributor

log = logging.getLogger(__name__)

FRESH_S: Final = 1.0
"""The age up to which a Report is fresh enough for a reader."""

FRESH_WAIT_S: Final = 0.5
"""How long a reader waits for a fresh Report before it takes the newest one."""

_FIRST_ANSWER_S: Final = 10.0
"""A source answers or reports a timeout within this time. One that does neither hangs."""


class Sampler:
    """A thread that runs a cycle every ``interval_s``: the driver's utilisation ring wraps in about 10 s.

    The interval counts from start to start, however long a cycle takes. A cycle that a reader asks for restarts it.
    ``on_sample`` is called with every Report, in this thread.
    """

    def __init__(self, engine: Engine, interval_s: float, on_sample: Callable[[Report], None] = lambda _: None) -> None:
        self._engine = engine
        self._interval_s = interval_s
        self._on_sample = on_sample
        # One lock with two conditions, so that asking for a cycle does not wake the readers that wait for one.
        lock = threading.RLock()
        self._requested, self._completed = threading.Condition(lock), threading.Condition(lock)
        self._is_requested = True
        self._stopped = False
        self._cycles = 0
        self._started_s: float | None = None
        """When the cycle that is running began; ``None`` between cycles."""
        self._asked_s: float | None = None
        """When the first of the readers that wait for the next cycle asked for it."""
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._loop, name="otel-gpu-sampler", daemon=True)

    def start(self) -> None:
        """Start the thread. The first cycle runs at once."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop after the present cycle, or without waiting for it if it takes longer than ``timeout_s``."""
        with self._requested:
            self._stopped = True
            self._requested.notify_all()
            self._completed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def cycles(self) -> int:
        """The number of cycles so far, those that failed included."""
        return self._cycles

    def fresh(self, max_age_s: float = FRESH_S, wait_s: float = FRESH_WAIT_S) -> Report | None:
        """A Report at most ``max_age_s`` old if there is one within ``wait_s``, else the newest one.

        All readers of a cycle wait together: if it takes longer than ``wait_s``, one that asks later does not wait.
        """
        age_s = self._engine.age_s()
        if age_s is None or age_s > max_age_s:
            with self._requested:
                seen, now_s = self._cycles, time.monotonic()
                if self._started_s is None or now_s - self._started_s > max_age_s:
                    self._is_requested = True
                    self._requested.notify_all()
                if self._asked_s is None:
                    self._asked_s = now_s
                left_s = max(0.0, self._asked_s + wait_s - now_s)
                self._completed.wait_for(lambda: self._cycles > seen or self._stopped, left_s)
        return self._engine.latest

    def wait_for_cycle(self, seen: int, timeout_s: float, unless: Callable[[], bool] = lambda: False) -> int:
        """Wait at most ``timeout_s`` until there are more than ``seen`` cycles; returns their number.

        Returns at once if ``unless`` is true. ``wake`` makes a waiting thread check it again.
        """
        with self._completed:
            self._completed.wait_for(lambda: self._cycles > seen or self._stopped or unless(), timeout_s)
            return self._cycles

    def wake(self) -> None:
        """Make threads in ``wait_for_cycle`` check again. Safe in a signal handler of the waiting thread.

        The lock is reentrant, and a thread releases it while it waits.
        """
        with self._completed:
            self._completed.notify_all()

    def _until_next_s(self) -> float:
        """Time to the next whole interval after the start of the newest cycle. Missed cycles are not made up for."""
        age_s = self._engine.age_s()
        return self._interval_s if age_s is None else self._interval_s - age_s % self._interval_s

    def _log_outcome(self, error: Exception | None) -> None:
        """Log one line when sampling starts to fail or fails in another way, and one when it works again."""
        failure = None if error is None else type(error).__name__
        before, self._failure = self._failure, failure
        if failure is not None and failure != before:
            log.error("sampling failed: %s: %s", failure, error, exc_info=log.isEnabledFor(logging.DEBUG) and error)
        elif failure is None and before is not None:
            log.info("sampling works again")

    def _loop(self) -> None:
        while True:
            with self._requested:
                self._requested.wait_for(lambda: self._is_requested or self._stopped, self._until_next_s())
                if self._stopped:
                    return
                self._is_requested = False
                self._started_s = time.monotonic()
            try:
                self._on_sample(self._engine.sample())
                self._log_outcome(None)
            except Exception as error:  # a bug in one cycle must not end the agent
                self._log_outcome(error)
            with self._requested:
                self._cycles += 1
                self._started_s = self._asked_s = None
                self._completed.notify_all()


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

    def sample(self) -> Report:
        """Run one cycle now, for a command that does not start the sampler."""
        report = self.engine.sample()
        self.account.observe(report)
        return report

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


# ---------------------------------------------------------------------------- changes of state


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
            is_ok = state is SourceState.OK
            reason = None if is_ok else source.reason
            extra = {"fields": {"source": source.name, "state": state.value, "reason": reason}}
            if is_ok:
                log.info("%s is ok again", source.name, extra=extra)
            elif state is SourceState.PAUSED:
                log.info("%s is %s", source.name, source.reason, extra=extra)
            else:
                log.warning("%s is %s: %s", source.name, state.value, source.reason, extra=extra)


class GpuLog:
    """Logs one line per change of a GPU's state: which GPU, the state, the reason."""

    def __init__(self, source_name: str) -> None:
        """``source_name`` is the source of the GPUs. A state of the whole source is logged there, not per GPU."""
        self._source_name = source_name
        self._states: dict[str, GpuHealth] | None = None

    def observe(self, report: Report) -> None:
        """Log what has changed since the last cycle."""
        source = next(source for source in report.sources if source.name == self._source_name)
        if source.state is not SourceState.OK and not source.by_gpu:
            return
        before, now = self._states, {}
        for gpu in (gpu.reading for gpu in report.gpus):
            now[gpu.identity.uuid] = gpu.health
            # In the first cycle a GPU that is ok is not logged; one that appears later is.
            known = GpuHealth.OK if before is None else before.get(gpu.identity.uuid)
            if known is not gpu.health:
                self._log(gpu, known)
        self._states = now or before

    def _log(self, gpu: GpuReading, before: GpuHealth | None) -> None:
        identity = gpu.identity
        label = f"GPU {identity.index} ({identity.name}, {identity.uuid})"
        fields = {"gpu": identity.uuid, "index": identity.index, "state": gpu.health.value, "reason": gpu.reason}
        if gpu.health is GpuHealth.OK:
            log.info("%s is %s", label, "new" if before is None else "ok again", extra={"fields": fields})
        else:
            level = logging.INFO if gpu.health is GpuHealth.ASLEEP else logging.WARNING
            log.log(level, "%s is %s: %s", label, gpu.health.value, gpu.reason, extra={"fields": fields})
