"""One log line per change of a GPU's state: which GPU, what, what to do; and when it is back."""

from __future__ import annotations

import logging

from otel_gpu.model import GpuHealth, GpuReading, Report, SourceState

log = logging.getLogger(__name__)


class GpuLog:
    """Knows the state each GPU was last told in; a GPU that is forgotten by its source is forgotten here."""

    def __init__(self, source_name: str) -> None:
        """``source_name`` is the GPUs' source: what it says of itself, and so of all of them, is not said again."""
        self._source_name = source_name
        self._states: dict[str, GpuHealth] | None = None

    def observe(self, attribution: Report) -> None:
        """Log what changed since the last time."""
        source = next(source for source in attribution.sources if source.name == self._source_name)
        if source.state is not SourceState.OK and not source.by_gpu:
            return
        before, now = self._states, {}
        for gpu in (gpu.reading for gpu in attribution.gpus):
            now[gpu.identity.uuid] = gpu.health
            # At the start everybody is expected to be well; who comes later is news.
            known = GpuHealth.OK if before is None else before.get(gpu.identity.uuid)
            if known is not gpu.health:
                self._log(gpu, known)
        self._states = now or before

    def _log(self, gpu: GpuReading, before: GpuHealth | None) -> None:
        identity = gpu.identity
        who = f"GPU {identity.index} ({identity.name}, {identity.uuid})"
        fields = {"gpu": identity.uuid, "index": identity.index, "state": gpu.health.value, "reason": gpu.reason}
        if gpu.health is GpuHealth.OK:
            log.info("%s is %s", who, "new" if before is None else "ok again", extra={"fields": fields})
        else:
            level = logging.INFO if gpu.health is GpuHealth.ASLEEP else logging.WARNING
            log.log(level, "%s is %s: %s", who, gpu.health.value, gpu.reason, extra={"fields": fields})
