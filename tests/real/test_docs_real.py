"""Commands of the pages, run as they stand: agents in a network of their own, where every port is free."""

from __future__ import annotations

import ctypes.util
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
import trustme

from otel_gpu.version import __version__
from tests.agent_process import AgentProcess
from tests.cli import clean_environment
from tests.docs_commands import ROOT, Command, all_blocks, all_commands, run_by
from tests.real.manifests import KUBERNETES, built, check_references, parse_strictly, run
from tests.real.programs import require_program

pytestmark = pytest.mark.real

WEB_CONFIG: Final = "/etc/otel-gpu/web.yml"


def asked(test: str) -> pytest.MarkDecorator:
    """Every command that a test of this file has to run."""
    return pytest.mark.parametrize("command", run_by(test), ids=str)


def activation() -> str:
    """What the README has somebody type first, in the environment that runs these tests."""
    [command] = run_by("test_the_program_is_where_the_readme_says")
    assert command.page == "README.md"
    return command.text.replace(".venv", sys.prefix)


@pytest.fixture
def environment() -> dict[str, str]:
    """That of a shell after what the README has typed first, and nothing else: no variable of ours, no program."""
    outside = {each for each in os.environ["PATH"].split(os.pathsep) if not (Path(each) / "otel-gpu").exists()}
    plain = [each for each in os.environ["PATH"].split(os.pathsep) if each in outside]
    before = clean_environment({}) | {"PATH": os.pathsep.join(plain)}
    words = ["bash", "-c", f"{activation()} && env -0"]
    after = subprocess.run(words, env=before, cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout
    return dict(each.split("=", 1) for each in after.split("\0") if each)


def test_the_program_is_where_the_readme_says(environment: dict[str, str]) -> None:
    words = ["bash", "-c", "command -v otel-gpu && otel-gpu --version"]
    result = subprocess.run(words, env=environment, capture_output=True, encoding="utf-8", check=True)
    assert result.stdout.splitlines() == [f"{sys.prefix}/bin/otel-gpu", f"otel-gpu {__version__}"]
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    typed = [command.text for command in all_commands() if command.page == "README.md"]
    used = next(number for number, text in enumerate(typed) if text.startswith("otel-gpu "))
    assert ". .venv/bin/activate" in typed[:used], "before the first use"
    assert "make run" in typed[: typed.index(". .venv/bin/activate")], "which puts it there"
    assert "SIMULATED HOST" in page


def rows(shown: str, heading: str) -> tuple[str, list[list[str]]]:
    """The headings of a table, and the first five cells of each row, which all have; but none that was cut."""
    lines = shown.splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith(heading)]
    table = itertools.takewhile(lambda line: line and not line.startswith("… "), lines[at + 1 :])
    cells = [[cell for cell in re.split(r" {2,}", line.strip())[:5] if "…" not in cell] for line in table]
    return " ".join(lines[at].split()), cells


def test_without_a_gpu_what_the_readme_says_shows_what_the_readme_shows(environment: dict[str, str]) -> None:
    if ctypes.util.find_library("nvidia-ml") is not None:
        pytest.skip("this host may have a GPU")
    [text] = [one.text for one in all_commands() if one.page == "README.md" and one.text.startswith("otel-gpu once")]
    result = subprocess.run(
        ["bash", "-c", text], env=environment, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60, check=True
    )
    [shown] = [each.text for each in all_blocks() if each.page == "README.md" and "SIMULATED HOST" in each.text]
    # The same host at the same age: what is drawn in the last second differs a little.
    (headings, shown_rows), (printed, found_rows) = rows(shown, "WORKLOAD "), rows(result.stdout, "WORKLOAD ")
    assert headings == printed
    assert shown_rows
    for row in shown_rows:
        assert any(set(row) <= set(found) for found in found_rows), row
    titles = [text.splitlines()[0] for text in (shown, result.stdout)]
    pattern = rf"otel-gpu {re.escape(__version__)}  (\S+)  \S+Z  driver (\S+)  SIMULATED HOST: no figure .+"
    assert all(re.fullmatch(pattern, title) for title in titles), "both name the host"
    assert re.findall(r"J IN (\d)\.\d s", result.stdout) == ["1"]


@contextmanager
def started(text: str, environment: Mapping[str, str], directory: Path) -> Iterator[AgentProcess]:
    """An agent, started by this line of shell in a network of its own; killed at the end if it still runs."""
    if os.geteuid() != 0:
        pytest.skip("a network of one's own needs root")
    require_program("ip", "apt install iproute2")
    words = ["unshare", "--net", "bash", "-c", f"ip link set lo up && exec {text}"]
    agent = AgentProcess(words, environment, directory)
    try:
        agent.until(lambda: "is running" in agent.stderr)
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
        listed = agent.stderr.partition("is running:\n")[2]
        assert "/healthz" in listed
        assert ("/metrics" in listed) == any(word in text for word in ("prometheus", "--compat"))
        assert ("as dcgm-exporter" in listed) == ("dcgm-exporter" in text)
        assert ("exports to" in listed) == ("--exporters prometheus" not in text)
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(60) == 0
    assert "Traceback" not in agent.stderr


@asked("test_make_run_is_all_that_somebody_new_has_to_type")
def test_make_run_is_all_that_somebody_new_has_to_type(
    command: Command, environment: dict[str, str], tmp_path: Path
) -> None:
    require_program("curl", "apt install curl")
    # In a group of its own, which Ctrl-C in a terminal would reach as a whole: make, and the agent that it started.
    with started(f"setsid {command.text} -C {ROOT} VENV={sys.prefix}", environment, tmp_path) as make:
        try:
            make.until(lambda: "GiB" in make.stdout)
            for path in ("/", "/metrics", "/healthz", "/readyz", "/api/attribution"):
                assert f"http://127.0.0.1:9464{path} " in make.stderr or path == "/readyz"
                answer = beside(make, f"curl -sf http://127.0.0.1:9464{path}", environment)
                assert answer.returncode == 0, path
                assert answer.stdout
            os.killpg(make.process.pid, signal.SIGINT)
            make.process.wait(60)
            until_gone(make.process.pid)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(make.process.pid, signal.SIGKILL)
    assert "POWER is the mean of the last " in make.stdout, "figures of work and power too"
    assert "exports to" not in make.stderr
    assert "Traceback" not in make.stderr


def until_gone(group: int) -> None:
    """Wait until there is nobody in a group of processes; AssertionError if that takes longer than an agent may."""
    deadline_s = time.monotonic() + 10.0
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline_s:
            os.killpg(group, 0)
            time.sleep(0.05)
        raise AssertionError(f"somebody of the group {group} goes on")


@asked("test_what_a_page_asks_an_agent_is_answered")
def test_what_a_page_asks_an_agent_is_answered(command: Command, environment: dict[str, str], tmp_path: Path) -> None:
    require_program("curl", "apt install curl")
    with started("otel-gpu demo", environment, tmp_path) as agent:
        agent.until(lambda: "200" in beside(agent, "curl -si http://127.0.0.1:9464/readyz", environment).stdout)
        # What is followed has no end: so long it has to begin.
        answer = beside(agent, f"{command.text} --no-progress-meter --fail --max-time 8", environment)
        assert answer.returncode in (0, 28), answer.stderr
        assert "attribution" in answer.stdout


@asked("test_a_command_answers_as_a_page_says")
def test_a_command_answers_as_a_page_says(command: Command, environment: dict[str, str]) -> None:
    if "| jq" in command.text:
        require_program("jq", "apt install jq")
    result = subprocess.run(
        ["bash", "-c", command.text],
        env=environment, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
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
    check_references(objects)


@asked("test_what_a_page_installs_can_be_rendered")
def test_what_a_page_installs_can_be_rendered(command: Command) -> None:
    [_, _, release, chart, *rest] = command.words
    result = run("helm", "template", release, ROOT / chart, "--kube-version", KUBERNETES, *rest)
    assert (result.returncode, result.stderr) == (0, "")
    objects = parse_strictly(result.stdout)
    assert {one["metadata"].get("namespace") for one in objects} - {None} == {rest[rest.index("--namespace") + 1]}
