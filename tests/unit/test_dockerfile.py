"""The Dockerfile, as far as it can be checked without building it (tests/real/test_image_real.py does)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from tests.cli import otel_gpu
from tests.real.programs import serving

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
BUILD, FINAL = re.split(r"^FROM .*$", DOCKERFILE, flags=re.MULTILINE)[1:]


def words(instruction: str) -> list[str]:
    """The words of an instruction in its form without a shell."""
    [found] = re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)
    return [str(word) for word in json.loads(found)]


def exposed() -> str:
    [port] = re.findall(r"^EXPOSE ([0-9]+)$", DOCKERFILE, re.MULTILINE)
    return str(port)


def test_the_container_serves_metrics_and_health_on_the_port_it_exposes() -> None:
    run, *flags = words("CMD")
    assert run == "run"
    lines = otel_gpu("config", *flags).stdout.splitlines()  # it takes the flags of run
    effective = {key: value for key, value, *_ in (line.split() for line in lines)}
    assert effective["prometheus"] == "on"
    assert effective["listen"] == f"0.0.0.0:{exposed()}"


@pytest.mark.parametrize("status", [HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE])
def test_the_health_check_has_the_result_of_healthz(status: HTTPStatus) -> None:
    asked = []

    def healthz(request: WSGIEnvironment, respond: StartResponse) -> list[bytes]:
        asked.append((request["PATH_INFO"], request["HTTP_HOST"]))
        respond(f"{status.value} {status.phrase}", [("Content-Type", "text/plain")])
        return [b"200 is not said here\n"]

    python, option, program = words(r"HEALTHCHECK .*?CMD")
    assert (python, option) == ("python3", "-ISc")
    with serving(healthz) as address:
        here = program.replace(exposed(), str(address.port))
        result = subprocess.run([sys.executable, option, here], check=False, timeout=30)
    assert asked == [("/healthz", f"127.0.0.1:{address.port}")]
    assert (result.returncode == 0) == (status is HTTPStatus.OK)


def test_without_an_agent_the_health_check_fails() -> None:
    *_, option, program = words(r"HEALTHCHECK .*?CMD")
    unused = program.replace(exposed(), "1")
    assert subprocess.run([sys.executable, option, unused], check=False, capture_output=True).returncode != 0


def test_the_image_does_not_run_as_root_by_default() -> None:
    [user] = re.findall(r"^USER (.*)$", FINAL, re.MULTILINE)
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", user)  # numbers: runAsNonRoot cannot look up names


def test_packages_are_installed_by_their_hashes_and_only_in_the_first_stage() -> None:
    for pins in ("runtime", "build"):
        assert re.search(rf"--require-hashes --no-deps \\\n +-r constraints/{pins}\.txt", BUILD)
    assert "RUN" not in FINAL
    assert "COPY --from=build /opt/otel-gpu /opt/otel-gpu" in FINAL


def test_what_is_copied_into_the_image_is_sent_to_the_engine_and_nothing_else_is() -> None:
    everything, *kept = [
        line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    ]
    assert everything == "*"
    copied = {
        word.rstrip("/")
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for word in line.split()[:-1]
    }
    assert {line.removeprefix("!") for line in kept if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)
