"""A real Prometheus that scrapes one address every second, and ``promtool``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from otel_gpu.config.values import Address
from tests.agent_process import AgentProcess, agent_process
from tests.real.programs import free_addresses, require_program, responds
from tests.web import ask

_REMEDY: Final = "on Debian and Ubuntu: apt install prometheus"


@dataclass(frozen=True, slots=True)
class Series:
    """A series: labels including ``__name__``, and samples as (Unix time in s, value), oldest first."""

    labels: Mapping[str, str]
    samples: Sequence[tuple[float, float]]

    @property
    def value(self) -> float:
        """The newest value."""
        return self.samples[-1][1]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A ready Prometheus."""

    process: AgentProcess
    address: Address

    def query(self, expression: str, at_s: float | None = None) -> Sequence[Series]:
        """The value of an expression now or at a Unix time, one sample per series."""
        return [Series(one["metric"], [_sample(one["value"])]) for one in self._ask(expression, "vector", at_s)]

    def raw(self, selector: str, window: str = "1h") -> Sequence[Series]:
        """The stored samples of a selector."""
        return [
            Series(one["metric"], [_sample(pair) for pair in one["values"]])
            for one in self._ask(f"{selector}[{window}]", "matrix")
        ]

    def get(self, path: str, **asked: str) -> Any:
        """The data of its HTTP API at a path, as in ``get("/api/v1/rules")``."""
        answer = json.loads(ask(self.address, f"{path}?{urlencode(asked)}").body)
        assert answer["status"] == "success", answer
        return answer["data"]

    @property
    def remote_write_url(self) -> str:
        """Where it takes remote writes."""
        return f"http://{self.address}/api/v1/write"

    def _ask(self, expression: str, kind: str, at_s: float | None = None) -> Sequence[Mapping[str, Any]]:
        asked = {"query": expression} | ({} if at_s is None else {"time": repr(at_s)})
        data = self.get("/api/v1/query", **asked)
        assert data["resultType"] == kind, data
        result: Sequence[Mapping[str, Any]] = data["result"]
        return result


@contextmanager
def prometheus(
    target: Address | None,
    *,
    directory: Path,
    flags: Sequence[str] = (),
    rules: Sequence[Path] = (),
    **scrape: object,
) -> Iterator[Prometheus]:
    """Start a Prometheus and wait until it is ready; without a target it accepts only remote writes.

    ``scrape`` are further settings of the scrape configuration. Groups of ``rules`` without an interval are evaluated
    every second. The data are in ``directory``. Prometheus is killed at the end.
    """
    program = require_program("prometheus", _REMEDY)
    [address] = free_addresses(1)
    directory.mkdir(exist_ok=True)
    job = {"job_name": "test", "scrape_interval": "1s", "scrape_timeout": "1s", **scrape}
    jobs = [] if target is None else [job | {"static_configs": [{"targets": [str(target)]}]}]
    configuration = directory / "prometheus.yml"
    configured = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": jobs,
    }
    configuration.write_text(json.dumps(configured), encoding="utf-8")
    words = [
        str(program),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--web.enable-remote-write-receiver",
        "--log.level=warn",
        *flags,
    ]
    with agent_process(directory=directory, words=words) as process:
        process.until(lambda: responds(address, "/-/ready"))
        yield Prometheus(process, address)


def promtool(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``promtool``, as in ``promtool("check", "metrics", stdin=exposition)``."""
    return subprocess.run(
        [require_program("promtool", _REMEDY), *arguments],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def _sample(pair: Sequence[Any]) -> tuple[float, float]:
    time_s, value = pair
    return float(time_s), float(value)
