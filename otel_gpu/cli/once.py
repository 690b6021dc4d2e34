"""``otel-gpu once``: two samples, one interval apart, as table, JSON, Prometheus text or OTLP."""

from __future__ import annotations

import sys
import time
from typing import Final

from otel_gpu.agent.host import ONE_SHOT_NAMES_S, Host, open_host, view_subject
from otel_gpu.agent.resources import resources_of
from otel_gpu.agent.sampling import Sampling
from otel_gpu.cli.logs import announce_simulation, notify, show_progress
from otel_gpu.cli.stdio import stdout_paint, table_size, write
from otel_gpu.clock import SystemClock
from otel_gpu.config import Config
from otel_gpu.errors import Unavailable
from otel_gpu.export.document import to_json
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.export.table import render
from otel_gpu.metrics.agent_values import SelfStats
from otel_gpu.metrics.collect import MetricCollector
from otel_gpu.metrics.labels import Resources
from otel_gpu.model import Report, SourceOutcome, SourceState
from otel_gpu.view.builder import Subject, ViewBuilder
from otel_gpu.view.terminal import encodable

_DONE: Final = 0
_NOTICED_S: Final = 2.0
"""A longer interval has a notice."""


def once(config: Config, *, form: str) -> int:
    """Sample twice and print the Report: as table, json, prometheus or otlp. Unavailable if no GPU answers."""
    clock = SystemClock()
    with show_progress("opening the driver"):
        host = open_host(config, clock, one_shot=True)
    announce_simulation(host.simulated_because)
    sampling = Sampling(config, host, clock)  # never started: this thread samples
    try:
        with show_progress("reading GPUs and processes"):
            report = sampling.sample()
        if _has_gpus(report, host):
            _wait(config.sampling.interval_s, host)
            with show_progress("reading GPUs and processes again"):
                report = sampling.sample()
    finally:
        sampling.stop()
    if _has_gpus(report, host):
        write(sys.stdout, _rendered(report, sampling.account.stats(), config, host, form))
    source = _gpu_source(report, host)
    if source.state is SourceState.UNAVAILABLE or not _has_gpus(report, host):  # every GPU may be asleep
        raise Unavailable(source.reason or "no GPU answers")
    return _DONE


def _wait(interval_s: float, host: Host) -> None:
    if interval_s > _NOTICED_S:
        text = f"sampling for {interval_s:g} s…"
        notify(f"{text}\n", text, {})
    if host.discovery is not None:
        host.discovery.wait(ONE_SHOT_NAMES_S)  # name sources of workloads that the first sample found
    time.sleep(interval_s)


def _gpu_source(report: Report, host: Host) -> SourceOutcome:
    return next(source for source in report.sources if source.name == host.gpus.name)


def _has_gpus(report: Report, host: Host) -> bool:
    """Whether there is something to print. A pod's Report has its own GPUs only, and may have none."""
    return bool(report.gpus) or (
        host.pod is not None and _gpu_source(report, host).state is not SourceState.UNAVAILABLE
    )


def _rendered(report: Report, stats: SelfStats, config: Config, host: Host, form: str) -> str:
    match form:
        case "table":
            host_name = resources_of(config, host.pod).shared.get("host.name", "")
            return _table(report, view_subject(config, host, host_name))
        case "json":
            return to_json(report) + "\n"
        case _:
            return exported(report, stats, config, resources_of(config, host.pod), form)


def _table(report: Report, subject: Subject) -> str:
    text = render(report, ViewBuilder(subject).build(report), width=table_size()[0], paint=stdout_paint())
    return encodable(sys.stdout.encoding, text)


def exported(report: Report, stats: SelfStats, config: Config, resources: Resources, form: str) -> str:
    """What the agent would export of this Report, as prometheus or otlp."""
    collector = MetricCollector(
        lambda: stats,
        currency=config.attribution.currency,
        process_level=config.export.process_metrics,
        include_awaiting_names=True,  # there is no later cycle to export them in
    )
    collection = collector.collect(report)
    if form == "prometheus":
        return PrometheusRenderer(resources).render(collection, Exposition.TEXT).decode()
    from otel_gpu.export.otlp import to_otlp_json  # noqa: PLC0415 - loads protobuf

    return to_otlp_json(collection, resources)
