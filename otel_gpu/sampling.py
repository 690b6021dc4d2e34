"""A host under observation: sampled in the background, laid out for instruments."""

from __future__ import annotations

from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.engine import Engine
from otel_gpu.host import Host
from otel_gpu.metrics.readings import Readings
from otel_gpu.metrics.selfstats import SelfAccount
from otel_gpu.model import Attribution
from otel_gpu.sampler import Sampler
from otel_gpu.selfcost import SelfCost


class Sampling:
    """Engine, sampler and the agent's own account, made together and ended together. Nothing runs before ``start``."""

    def __init__(self, config: Config, host: Host, clock: Clock) -> None:
        self.engine = Engine(
            gpus=host.gpus, processes=host.processes, names=host.names, clock=clock, options=config.attribution
        )
        cost = SelfCost()
        self.account = SelfAccount(started_ns=clock.wall_ns(), cpu_s=cost.cpu_s, memory_bytes=cost.memory_bytes)
        self.sampler = Sampler(self.engine, config.interval_s, on_sample=self.account.observe)
        self.readings = Readings(
            self._fresh, self.account, currency=config.currency, process_level=config.process_metrics
        )
        self._stopped = False

    def start(self) -> None:
        """Take the first sample and go on."""
        self.sampler.start()

    def stop(self) -> None:
        """Sample no more and let go of the driver; from now on there is nothing to read."""
        self._stopped = True
        self.sampler.stop()
        self.engine.close()

    def _fresh(self) -> Attribution | None:
        return None if self._stopped else self.sampler.fresh()
