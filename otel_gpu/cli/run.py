"""``otel-gpu run`` and ``otel-gpu demo``: the agent."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from typing import Final

from otel_gpu.agent.agent import Agent
from otel_gpu.agent.host import Host, open_host
from otel_gpu.agent.own_process import raise_descriptor_limit, release_free_memory, tune_gc, tune_malloc
from otel_gpu.agent.resources import resources_of
from otel_gpu.cli.logs import announce_simulation, notify, show_progress
from otel_gpu.cli.stdio import stdout_paint, table_size, write
from otel_gpu.clock import SystemClock
from otel_gpu.config import Config
from otel_gpu.control.restart import restart
from otel_gpu.export.live_table import LiveTable
from otel_gpu.model import Report
from otel_gpu.state.persistent import open_attributor
from otel_gpu.version import __version__
from otel_gpu.view.terminal import pad

log = logging.getLogger(__name__)

_DONE: Final = 0


def run(config: Config, *, view: bool, demo: bool = False) -> int:
    """Run the agent until SIGTERM, SIGINT or SIGHUP. ``demo`` changes the reason why a host is simulated.

    SIGHUP does not reload the configuration: whatever has started the agent starts it again.
    """
    tune_malloc()
    raise_descriptor_limit()
    clock = SystemClock()
    with show_progress("opening the driver"):
        host = open_host(config, clock)
    if demo:
        host = replace(host, simulated_because="it is the demo")
    is_simulated = host.simulated_because is not None
    # A simulated host has no driver to release: it has a control socket only if one is configured.
    control_socket = config.state.control_socket
    control = None if is_simulated and control_socket.auto else control_socket.agent_path(os.environ)
    with show_progress("recovering the saved state"):
        attributor = open_attributor(
            config.attribution.options,
            config.state.directory,
            clock,
            os.environ,
            simulated=is_simulated,
            release_memory=release_free_memory,
        )
    if attributor is not None:
        host.recall(attributor.known_gpus)
    resources = resources_of(config, host.pod)
    agent = Agent(config, host, resources, clock, control=control, attributor=attributor)
    # Only now: a driver that hangs while it is opened must not delay SIGTERM.
    stop = threading.Event()
    # A closed terminal ends the agent, unless nohup ignores SIGHUP.
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)

    def end(*_: object) -> None:
        stop.set()
        agent.wake()

    for number in (signal.SIGTERM, signal.SIGINT, *hangup):
        signal.signal(number, end)
    notes = [f"page {agent.web.url}/  {'  '.join(_paths(config))}"]
    if is_simulated:
        notes.insert(0, f"why: {host.simulated_because}")
    live = LiveTable(
        sys.stdout,
        write,
        paint=stdout_paint(),
        size=table_size,
        view_of=agent.events.view,
        notes=notes,
    )
    tune_gc()
    try:
        agent.run(stop, live.show if view else _ignore, lambda: _announce(config, host, agent))
    finally:
        live.close()
    if not stop.is_set():
        log.warning("the driver was upgraded: restarting to load its new library")
        restart(os.environ, clock)
    return _DONE


def _announce(config: Config, host: Host, agent: Agent) -> None:
    announce_simulation(host.simulated_because)
    paths = {"/": "the page", **_paths(config)}
    width = max(map(len, paths))
    lines = [f"otel-gpu {__version__} is running:"]
    lines += [f"  {agent.web.url}{pad(path, width)}  {what}" for path, what in paths.items()]
    lines += [f"  {url}  as {exporter}" for url, exporter in agent.compat.urls.items()]
    every = f"every {config.export.interval_s:g} s"
    lines += [f"  exports to {pusher.target} {every}" for pusher in agent.export_pipeline.pushers]
    fields = {
        "version": __version__,
        "urls": [*(f"{agent.web.url}{path}" for path in paths), *agent.compat.urls],
        "exporters": [pusher.target for pusher in agent.export_pipeline.pushers],
    }
    notify("\n".join(lines) + "\n", "otel-gpu is running", fields)


def _paths(config: Config) -> dict[str, str]:
    """The endpoints in addition to the page."""
    paths = {"/metrics": "for Prometheus", "/api/attribution": "JSON", "/healthz": "health"}
    return {path: what for path, what in paths.items() if config.export.serves_prometheus or path != "/metrics"}


def _ignore(report: Report) -> None:
    """Without --view nothing is shown."""
