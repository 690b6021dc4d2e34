"""A real OpenTelemetry Collector, built by ``make collector``, on free loopback ports."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_gpu.config.values import Address
from tests.agent_process import AgentProcess, agent_process
from tests.cli import clean_environment
from tests.real.programs import free_addresses, require, responds

ROOT: Final = Path(__file__).parents[2]
CONFIGURATIONS: Final = ROOT / "collector-config"
_BUILD: Final = ROOT / "tools" / "collector" / "build.sh"
# By default every Collector serves its own metrics on the same port.
_NO_TELEMETRY: Final = "yaml:service::telemetry::metrics::level: none"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a Collector, named after the settings in collector-config/."""

    otlp_grpc: Address
    otlp_http: Address
    member: Address
    prometheus: Address
    health: Address

    @classmethod
    def free(cls) -> Addresses:
        """Free addresses."""
        return cls(*free_addresses(5))

    def environment(self) -> Mapping[str, str]:
        """The variables that make a shipped configuration listen on these addresses."""
        return {
            "OTLP_GRPC_LISTEN": str(self.otlp_grpc),
            "OTLP_HTTP_LISTEN": str(self.otlp_http),
            "MEMBER_LISTEN": str(self.member),
            "PROMETHEUS_LISTEN": str(self.prometheus),
            "HEALTH_LISTEN": str(self.health),
        }


@dataclass(frozen=True, slots=True)
class Collector:
    """A healthy Collector."""

    process: AgentProcess
    addresses: Addresses

    @property
    def log(self) -> str:
        """Its log so far."""
        return self.process.stderr


def binary() -> Path:
    """The path of the Collector; skips the test if it was not built."""
    result = subprocess.run([_BUILD, "--find"], capture_output=True, encoding="utf-8", check=False)
    return require(result.stdout.strip() or None, "an OpenTelemetry Collector", "make collector")


def validate(*configurations: Path | str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``otelcol validate`` on configurations that are merged in this order."""
    return subprocess.run(
        [binary(), "validate", *_options(configurations)],
        env=clean_environment(environment),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


@contextmanager
def collector(
    *configurations: Path | str,
    directory: Path,
    addresses: Addresses | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Collector]:
    """Start a Collector with configurations that are merged in this order, and wait until it is healthy.

    A configuration is a file, or ``yaml:`` and the content of one. Queue and output are in ``directory``. The Collector
    is killed at the end; ``process.end()`` terminates it.
    """
    at = addresses or Addresses.free()
    directory.mkdir(exist_ok=True, parents=True)
    with agent_process(
        directory=directory,
        environment={"QUEUE_DIRECTORY": str(directory / "queue"), **at.environment(), **(environment or {})},
        words=[str(binary()), *_options([*configurations, _NO_TELEMETRY])],
    ) as process:
        process.until(lambda: responds(at.health, "/"))
        yield Collector(process, at)


def to_file(path: Path, pipeline: str = "metrics") -> str:
    """A configuration that replaces the exporters of a pipeline with a file."""
    file = {"path": str(path), "flush_interval": "50ms"}
    pipelines = {pipeline: {"exporters": ["file"]}}
    return "yaml:" + json.dumps({"exporters": {"file": file}, "service": {"pipelines": pipelines}})


def read_file(path: Path) -> Sequence[Mapping[str, Any]]:
    """The ResourceMetrics in a Collector's file (OTLP/JSON), oldest first; empty while there is no file."""
    if not path.exists():
        return []
    # The last line may be incomplete.
    complete, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [resource for line in complete.splitlines() for resource in json.loads(line)["resourceMetrics"]]


def _options(configurations: Sequence[Path | str]) -> list[str]:
    return [f"--config={configuration}" for configuration in configurations]
