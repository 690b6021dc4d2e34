"""The Dockerfile, as far as it can be checked without building it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli import otel_gpu

DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8")


def test_the_container_serves_metrics_and_health_on_the_port_it_exposes() -> None:
    [words] = re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)
    [exposed] = re.findall(r"^EXPOSE ([0-9]+)$", DOCKERFILE, re.MULTILINE)
    run, *flags = json.loads(words)
    assert run == "run"
    lines = otel_gpu("config", *flags).stdout.splitlines()  # it takes the flags of run
    effective = {key: value for key, value, *_ in (line.split() for line in lines)}
    assert effective["prometheus"] == "true"
    assert effective["listen"] == f"0.0.0.0:{exposed}"
    assert f"http://127.0.0.1:{exposed}/healthz" in DOCKERFILE
