"""A real OpenTelemetry Collector, built by ``make collector``, on loopback ports of its own."""

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
from tests.real.parts import answers, free_addresses, needed

ROOT: Final = Path(__file__).parents[2]
CONFIGURATIONS: Final = ROOT / "collector-config"
_BUILD: Final = ROOT / "tools" / "collector" / "build.sh"
# Its own metrics would be served on a fixed port, on which two Collectors would meet.
_NO_TELEMETRY: Final = "yaml:service::telemetry::metrics::level: none"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a Collector listens, under the names that collector-config/ gives its settings."""

    otlp_grpc: Address
    otlp_http: Address
    member: Address
    prometheus: Address
    health: Address

    @classmethod
    def free(cls) -> Addresses:
        """Addresses on which nobody listens."""
        return cls(*free_addresses(5))

    def environment(self) -> Mapping[str, str]:
        """The settings that make a shipped configuration listen here."""
        return {
            "OTLP_GRPC_LISTEN": str(self.otlp_grpc),
            "OTLP_HTTP_LISTEN": str(self.otlp_http),
            "MEMBER_LISTEN": str(self.member),
            "PROMETHEUS_LISTEN": str(self.prometheus),
            "HEALTH_LISTEN": str(self.health),
        }


@dataclass(frozen=True, slots=True)
class Collector:
    """A Collector that has said it is healthy."""

    process: AgentProcess
    addresses: Addresses

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self.process.stderr


def binary() -> Path:
    """The Collector's path; the test is skipped where none was built."""
    result = subprocess.run([_BUILD, "--find"], capture_output=True, encoding="utf-8", check=False)
    return needed(result.stdout.strip() or None, "an OpenTelemetry Collector", "make collector")


def validate(*configurations: Path | str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What ``otelcol validate`` says of these, merged in this order."""
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
    """Start a Collector on these configurations, merged in this order, and wait until it is healthy.

    A configuration is a file, or ``yaml:`` and what would be in one. Its queue and output are in ``directory``. It is
    killed at the end; ``process.end()`` is the gentle way.
    """
    at = addresses or Addresses.free()
    directory.mkdir(exist_ok=True, parents=True)
    with agent_process(
        directory=directory,
        environment={"QUEUE_DIRECTORY": str(directory / "queue"), **at.environment(), **(environment or {})},
        words=[str(binary()), *_options([*configurations, _NO_TELEMETRY])],
    ) as process:
        process.until(lambda: answers(at.health, "/"))
        yield Collector(process, at)


def to_file(path: Path, pipeline: str = "metrics") -> str:
    """A configuration that makes a pipeline of another one write to a file instead of where it would send."""
    file = {"path": str(path), "flush_interval": "50ms"}
    pipelines = {pipeline: {"exporters": ["file"]}}
    return "yaml:" + json.dumps({"exporters": {"file": file}, "service": {"pipelines": pipelines}})


def read_file(path: Path) -> Sequence[Mapping[str, Any]]:
    """The ResourceMetrics in a file of the Collector's, as OTLP/JSON, oldest first; none while there is no file."""
    if not path.exists():
        return []
    # The last line may still be being written.
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [resource for line in whole.splitlines() for resource in json.loads(line)["resourceMetrics"]]


def _options(configurations: Sequence[Path | str]) -> list[str]:
    return [f"--config={configuration}" for configuration in configurations]
