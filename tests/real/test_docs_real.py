"""Commands of the pages, run as they stand: agents in a network of their own, where every port is free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import trustme

from tests.agent_process import AgentProcess
from tests.cli import clean_environment
from tests.docs_commands import ROOT, Command, all_blocks, run_by
from tests.real.manifests import KUBERNETES, built, consistent, run, strictly
from tests.real.parts import needed_program

pytestmark = pytest.mark.real

SIMULATED: Final = {"OTEL_GPU_SOURCE": "sim"}
WEB_CONFIG: Final = "/etc/otel-gpu/web.yml"


def asked(test: str) -> pytest.MarkDecorator:
    """Every command that a test of this file has to run."""
    return pytest.mark.parametrize("command", run_by(test), ids=str)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``otel-gpu`` is a program, that of this checkout, on a simulated host."""
    program = tmp_path / "bin/otel-gpu"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m otel_gpu "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    return clean_environment(SIMULATED) | {"PATH": path}


@contextmanager
def started(text: str, environment: Mapping[str, str], directory: Path) -> Iterator[AgentProcess]:
    """An agent, started by this line of shell in a network of its own; killed at the end if it still runs."""
    if os.geteuid() != 0:
        pytest.skip("a network of one's own needs root")
    needed_program("ip", "apt install iproute2")
    words = ["unshare", "--net", "bash", "-c", f"ip link set lo up && exec {text}"]
    agent = AgentProcess(words, environment, directory)
    try:
        agent.until(lambda: "is running; look at" in agent.stderr)
        yield agent
    finally:
        agent.process.kill()
        agent.process.wait()


def beside(agent: AgentProcess, text: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in the agent's network."""
    words = ["nsenter", f"--net=/proc/{agent.process.pid}/ns/net", "bash", "-c", text]
    return subprocess.run(words, env=environment, capture_output=True, encoding="utf-8", timeout=60, check=False)


def web_config(directory: Path) -> Path:
    """The web configuration that the page shows, and the files that it names."""
    [text] = [block.text for block in all_blocks() if f"# {WEB_CONFIG}" in block.text]
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    server.cert_chain_pems[0].write_to_path(directory / "server.crt")
    server.private_key_pem.write_to_path(directory / "server.key")
    authority.cert_pem.write_to_path(directory / "clients-ca.crt")
    path = directory / "web.yml"
    path.write_text(text, encoding="utf-8")
    return path


@asked("test_an_agent_starts_as_a_page_says")
def test_an_agent_starts_as_a_page_says(command: Command, environment: dict[str, str], tmp_path: Path) -> None:
    text = command.text.replace(WEB_CONFIG, str(web_config(tmp_path)))
    with started(text, environment, tmp_path) as agent:
        listed = agent.stderr.partition("look at\n")[2]
        assert "/healthz" in listed
        assert ("/metrics" in listed) == any(word in text for word in ("prometheus", "--compat"))
        assert ("as dcgm-exporter" in listed) == ("dcgm-exporter" in text)
        assert ("exports to" in listed) == ("--exporters prometheus" not in text)
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(60) == 0
    assert "Traceback" not in agent.stderr


@asked("test_what_a_page_asks_an_agent_is_answered")
def test_what_a_page_asks_an_agent_is_answered(command: Command, environment: dict[str, str], tmp_path: Path) -> None:
    needed_program("curl", "apt install curl")
    with started("otel-gpu demo", environment, tmp_path) as agent:
        agent.until(lambda: "200" in beside(agent, "curl -si http://127.0.0.1:9464/readyz", environment).stdout)
        # What is followed has no end: so long it has to begin.
        answer = beside(agent, f"{command.text} --no-progress-meter --fail --max-time 8", environment)
        assert answer.returncode in (0, 28), answer.stderr
        assert "attribution" in answer.stdout


@asked("test_a_command_answers_as_a_page_says")
def test_a_command_answers_as_a_page_says(command: Command, environment: dict[str, str]) -> None:
    if "| jq" in command.text:
        needed_program("jq", "apt install jq")
    real = {name: value for name, value in environment.items() if name not in SIMULATED}
    used = real if "doctor" in command.text else environment  # which examines this host
    result = subprocess.run(
        ["bash", "-c", command.text], env=used, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    # Without a GPU doctor is blind here, says so and exits with 1; behind a pipe that is not seen.
    assert result.returncode in ((0, 1) if "doctor" in command.text else (0,)), result.stderr
    assert result.stdout
    assert "Traceback" not in result.stderr


@asked("test_tests_that_a_page_names_are_found")
def test_tests_that_a_page_names_are_found(command: Command) -> None:
    words = [sys.executable, *command.words[1:], "--collect-only", "-p", "no:cacheprovider"]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert result.returncode == 0, result.stdout
    assert "::test_" in result.stdout


@asked("test_what_a_page_applies_can_be_built")
def test_what_a_page_applies_can_be_built(command: Command) -> None:
    [_, _, _, directory] = command.words
    objects = built(ROOT / directory)
    assert objects
    consistent(objects)


@asked("test_what_a_page_installs_can_be_rendered")
def test_what_a_page_installs_can_be_rendered(command: Command) -> None:
    [_, _, release, chart, *rest] = command.words
    result = run("helm", "template", release, ROOT / chart, "--kube-version", KUBERNETES, *rest)
    assert (result.returncode, result.stderr) == (0, "")
    objects = strictly(result.stdout)
    assert {one["metadata"].get("namespace") for one in objects} - {None} == {rest[rest.index("--namespace") + 1]}
