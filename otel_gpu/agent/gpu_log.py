"""Logs one line per change of a GPU's state: which GPU, the state, the reason."""

from __future__ import annotations

import logging

from otel_gpu.model import GpuHealth, GpuReading, Report, SourceState

log = logging.getLogger(__name__)


class GpuLog:
    """Keeps the last state of each GPU that its source lists."""

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
