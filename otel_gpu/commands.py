"""What each command does, once its settings are settled. The value is the exit code; failures are raised."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import textwrap
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from otel_gpu.agent.agent import Agent
from otel_gpu.agent.engine import Engine
from otel_gpu.agent.gc_tuning import limit_malloc_arenas, release_free_memory, tune_gc
from otel_gpu.agent.host import ONE_SHOT_NAMES_S, Host, open_host
from otel_gpu.agent.resources import host_resources, taken_keys
from otel_gpu.agent.self_usage import SelfUsage
from otel_gpu.clock import SystemClock
from otel_gpu.config import Config, Settled, SourceChoice
from otel_gpu.control.restart import restart
from otel_gpu.errors import Unavailable, UsageError
from otel_gpu.export.document import to_json
from otel_gpu.export.live_table import LiveTable
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.export.table import render
from otel_gpu.logs import remark
from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.collect import MetricCollector
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.names import prometheus_name
from otel_gpu.metrics.reference import attributes_text, markdown
from otel_gpu.metrics.selfstats import SelfAccount, SelfStats
from otel_gpu.model import Pod, Report, SourceOutcome, SourceState
from otel_gpu.progress import told_if_long
from otel_gpu.settings_names import Environment
from otel_gpu.setup import Mode, accounting, is_done
from otel_gpu.setup import report as report_setup
from otel_gpu.sources.nvml.api import NvmlApi
from otel_gpu.state.factory import open_attributor
from otel_gpu.streams import write
from otel_gpu.version import __version__
from otel_gpu.view.terminal import Column, Paint, cells, encodable, pad, printable, table

log = logging.getLogger(__name__)

DONE: Final = 0
FAILED: Final = 1


def config(settled: Settled) -> None:
    """Print every value and where it comes from."""
    rows = [(value.key, printable(value.text), printable(value.origin)) for value in settled.values]
    key_width, text_width = (max(cells(row[column]) for row in rows) for column in (0, 1))
    for key, text, origin in rows:
        write(sys.stdout, f"{pad(key, key_width)}  {pad(text, text_width)}  {origin}\n")
    for variable in settled.unknown_variables:
        write(sys.stdout, f"{printable(variable)} is set, is no setting and is ignored\n")


def metrics(*, as_markdown: bool) -> int:
    """Print the catalogue: for the documentation, or as wide as the terminal is."""
    if as_markdown:
        write(sys.stdout, markdown())
        return DONE
    width = _size()[0]
    columns = (Column("METRIC"), Column("KIND"), Column("UNIT"), Column("IN PROMETHEUS", drops=True))
    rows = [(each.name, each.kind, each.unit, prometheus_name(each)) for each in METRICS]
    heading, *lines = table(columns, rows, width, _paint())
    write(sys.stdout, f"{heading}\n")
    for each, line in zip(METRICS, lines, strict=True):
        below = [each.description, attributes_text(each.attributes)]
        if prometheus_name(each) not in line:  # too narrow for that column
            below.insert(0, prometheus_name(each))
        wrapped = (
            part
            for text in below
            for part in textwrap.wrap(text, max(width, 20), initial_indent="    ", subsequent_indent="      ")
        )
        write(sys.stdout, "\n".join([line, *wrapped]) + "\n")
    return DONE


def once(settings: Config, *, form: str) -> int:
    """Two samples, one interval apart, and what they show: as table, json, prometheus or otlp."""
    clock = SystemClock()
    usage = SelfUsage()
    account = SelfAccount(started_ns=clock.wall_ns(), cpu_s=usage.cpu_s, memory_bytes=usage.memory_bytes)
    with _told("opening the driver"):
        host = open_host(settings, clock, one_shot=True)
    _announce_simulation(host)
    engine = Engine(
        gpus=host.gpus,
        processes=host.processes,
        names=host.names,
        discovery=host.discovery,
        clock=clock,
        options=settings.attribution,
        pod=host.pod,
    )
    try:
        with _told("reading GPUs and processes"):
            attribution = engine.sample()
        account.observe(attribution)
        if _can_be_told(attribution, host):
            if settings.interval_s > 2:
                text = f"sampling for {settings.interval_s:g} s…"
                remark(f"{text}\n", text, {})
            if host.discovery is not None:
                host.discovery.wait(ONE_SHOT_NAMES_S)  # sources for workloads that only this sample has found
            time.sleep(settings.interval_s)
            with _told("reading GPUs and processes again"):
                attribution = engine.sample()
            account.observe(attribution)
    finally:
        engine.close()
    if _can_be_told(attribution, host):
        match form:
            case "table":
                text = _table(attribution, host, _host_name(_resources(settings, host.pod)))
            case "json":
                text = to_json(attribution) + "\n"
            case _:
                text = _exported(attribution, account.stats(), settings, _resources(settings, host.pod), form)
        write(sys.stdout, text)
    nvml = _gpu_source(attribution, host)
    if nvml.state is SourceState.UNAVAILABLE or not _can_be_told(attribution, host):  # all may sleep
        raise Unavailable(nvml.reason or "no GPU answers")
    return DONE


def _gpu_source(attribution: Report, host: Host) -> SourceOutcome:
    return next(source for source in attribution.sources if source.name == host.gpus.name)


def _can_be_told(attribution: Report, host: Host) -> bool:
    """Whether there are GPUs: in the answer, or, since one of a pod has only those it is on, looked at for it."""
    return bool(attribution.gpus) or (
        host.pod is not None and _gpu_source(attribution, host).state is not SourceState.UNAVAILABLE
    )


def doctor(settings: Config, *, form: str) -> int:
    """Check this host and print the findings, as text or JSON."""
    if settings.source is SourceChoice.SIM:
        raise UsageError("doctor checks this host; a simulated host (--source sim) has nothing to check")
    # Imported here: an agent that runs never needs it.
    from otel_gpu.doctor.checks import check_host  # noqa: PLC0415
    from otel_gpu.doctor.findings import is_blind, to_text  # noqa: PLC0415
    from otel_gpu.doctor.findings import to_json as findings_to_json  # noqa: PLC0415

    with _told("examining this host"):
        findings = check_host(settings, SystemClock(), dict(os.environ))
    if form == "json":
        write(sys.stdout, findings_to_json(findings) + "\n")
    else:
        write(sys.stdout, to_text(findings, _paint(), _size()[0] if sys.stdout.isatty() else None))
    return FAILED if is_blind(findings) else DONE


def setup_accounting(settings: Config, *, off: bool) -> int:
    """Switch accounting on, or off, on every GPU, and print what became of each."""
    wanted = Mode.OFF if off else Mode.ON
    with _told("asking the driver"):
        gpus = accounting(NvmlApi(), deadline_s=settings.deadline_s, wanted=wanted)
    write(sys.stdout, report_setup(gpus, wanted))
    return DONE if is_done(gpus, wanted) else FAILED


def run(settings: Config, *, view: bool, demo: bool = False) -> int:
    """The agent, until SIGTERM, SIGINT or SIGHUP. ``demo`` is why its host is simulated, where so."""
    limit_malloc_arenas()
    clock = SystemClock()
    with _told("opening the driver"):
        host = open_host(settings, clock)
    if demo:
        host = replace(host, simulated_because="it is the demo")
    # A simulated host has nothing to be let go of, unless somebody wants to see it.
    reachable = host.simulated_because is None or not settings.control_socket.auto
    control = settings.control_socket.agent_path(os.environ) if reachable else None
    with _told("going on from what was kept"):
        simulated = host.simulated_because is not None
        attributor = open_attributor(
            settings.attribution,
            settings.state_dir,
            clock,
            os.environ,
            simulated=simulated,
            release_memory=release_free_memory,
        )
    if attributor is not None:
        host.recall(attributor.known_gpus)
    resources = _resources(settings, host.pod)
    agent = Agent(settings, host, resources, clock, control=control, attributor=attributor)
    # Only now: a driver that hangs while it is opened must not make SIGTERM wait for it.
    stop = threading.Event()
    # A terminal that is closed is an end like any other, unless somebody said nohup.
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)

    def end(*_: object) -> None:
        stop.set()
        agent.wake()

    for number in (signal.SIGTERM, signal.SIGINT, *hangup):
        signal.signal(number, end)
    because = host.simulated_because
    notes = [f"page {agent.web.url}/  {'  '.join(_served(settings))}"]
    if because is not None:
        notes.insert(0, f"why: {because}")
    shown = LiveTable(
        sys.stdout,
        paint=_paint(),
        size=_room,
        simulated=because is not None,
        notes=notes,
        host_name=_host_name(resources),
    )
    tune_gc()
    try:
        agent.run(stop, shown.show if view else _ignore, lambda: _announce(settings, host, agent))
    finally:
        shown.close()
    if not stop.is_set():
        log.warning("the driver was upgraded: restarting with the library that belongs to it")
        restart(os.environ, clock)
    return DONE


def _announce(settings: Config, host: Host, agent: Agent) -> None:
    _announce_simulation(host)
    paths = {"/": "the page", **_served(settings)}
    width = max(map(len, paths))
    lines = [f"otel-gpu {__version__} is running; look at"]
    lines += [f"  {agent.web.url}{pad(path, width)}  {what}" for path, what in paths.items()]
    lines += [f"  {url}  as {exporter}" for url, exporter in agent.compat.urls.items()]
    every = f"every {settings.export_interval_s:g} s"
    lines += [f"and it exports to {pusher.target} {every}" for pusher in agent.export_pipeline.pushers]
    fields = {
        "version": __version__,
        "urls": [*(f"{agent.web.url}{path}" for path in paths), *agent.compat.urls],
        "exporters": [pusher.target for pusher in agent.export_pipeline.pushers],
    }
    remark("\n".join(lines) + "\n", "otel-gpu is running", fields)


def _served(settings: Config) -> dict[str, str]:
    """What there is beside the page."""
    paths = {"/metrics": "for Prometheus", "/api/attribution": "the same as JSON", "/healthz": "health"}
    return {path: what for path, what in paths.items() if settings.serves_prometheus or path != "/metrics"}


def _told(what: str) -> AbstractContextManager[None]:
    """Say on stderr what is done while that takes long."""
    return told_if_long(what, lambda text: remark(f"{text}\n", text, {}))


def _ignore(attribution: Report) -> None:
    """Nobody looks at this terminal."""


def _exported(attribution: Report, stats: SelfStats, settings: Config, resources: Resources, form: str) -> str:
    """What the agent would export of this."""
    collector = MetricCollector(
        lambda: stats,
        currency=settings.currency,
        process_level=settings.process_metrics,
        include_awaiting_names=True,  # there is no later cycle to export them in
    )
    collection = collector.collect(attribution)
    if form == "prometheus":
        return PrometheusRenderer(resources).render(collection, Exposition.TEXT).decode()
    from otel_gpu.export.console import to_otlp_json  # noqa: PLC0415 - loads protobuf

    return to_otlp_json(collection, resources)


def _resources(settings: Config, pod: Pod | None = None) -> Resources:
    # Keys that workloads may have: an attribute of the host must not take their place.
    extra_keys = settings.extra_keys(slurm=settings.environment in {Environment.AUTO, Environment.SLURM})
    taken = taken_keys(settings.resource_attributes, extra_keys)
    if taken:
        log.warning("resource-attributes %s are left out: metrics have attributes of that name", ", ".join(taken))
    return host_resources(
        service_name=settings.service,
        given=settings.resource_attributes,
        environment=os.environ,
        extra_keys=extra_keys,
        pod=pod,
    )


def _host_name(resources: Resources) -> str | None:
    return resources.shared.get("host.name")


def _table(attribution: Report, host: Host, host_name: str | None) -> str:
    simulated = host.simulated_because is not None
    text = render(attribution, width=_room()[0], paint=_paint(), simulated=simulated, host_name=host_name)
    return encodable(sys.stdout.encoding, text)


def _announce_simulation(host: Host) -> None:
    if host.simulated_because is not None:
        text = f"SIMULATED HOST, no figure is of a real GPU: {host.simulated_because}"
        remark(f"*** {text} ***\n", text, {"simulated": host.simulated_because}, logging.WARNING)


def _size() -> tuple[int, int]:
    return shutil.get_terminal_size(fallback=(120, 24))


def _room() -> tuple[int, int]:
    """Columns and lines for a table: in a pipe or a file there is room for all of it, unless COLUMNS says otherwise."""
    width, height = _size()
    return (width if sys.stdout.isatty() or "COLUMNS" in os.environ else sys.maxsize), height


def _paint() -> Paint:
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Paint(enabled=wanted)
