"""Commands in the pages, run unchanged: agents in a network namespace, where every port is free."""

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


def commands_for(test: str) -> pytest.MarkDecorator:
    """Parametrize a test with the commands that it has to run."""
    return pytest.mark.parametrize("command", run_by(test), ids=str)


def activation() -> str:
    """The README's activation command, for the environment of these tests."""
    [command] = run_by("test_the_readme_puts_the_program_on_path")
    assert command.page == "README.md"
    return command.text.replace(".venv", sys.prefix)


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of a shell after the README's activation command, without otel-gpu and its variables before."""
    outside = {each for each in os.environ["PATH"].split(os.pathsep) if not (Path(each) / "otel-gpu").exists()}
    plain = [each for each in os.environ["PATH"].split(os.pathsep) if each in outside]
    before = clean_environment({}) | {"PATH": os.pathsep.join(plain)}
    words = ["bash", "-c", f"{activation()} && env -0"]
    after = subprocess.run(words, env=before, cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout
    return dict(each.split("=", 1) for each in after.split("\0") if each)


def test_the_readme_puts_the_program_on_path(environment: dict[str, str]) -> None:
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
    """The headings of a table, and the first five cells of each row, except cut ones."""
    lines = shown.splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith(heading)]
    table = itertools.takewhile(lambda line: line and not line.startswith("… "), lines[at + 1 :])
    cells = [[cell for cell in re.split(r" {2,}", line.strip())[:5] if "…" not in cell] for line in table]
    return " ".join(lines[at].split()), cells


def test_the_example_output_in_the_readme_is_current(environment: dict[str, str]) -> None:
    if ctypes.util.find_library("nvidia-ml") is not None:
        pytest.skip("this host may have a GPU")
    [text] = [one.text for one in all_commands() if one.page == "README.md" and one.text.startswith("otel-gpu once")]
    result = subprocess.run(
        ["bash", "-c", text], env=environment, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60, check=True
    )
    [shown] = [each.text for each in all_blocks() if each.page == "README.md" and "SIMULATED HOST" in each.text]
    # The same host at the same age; only figures of the last second differ a little.
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
    """Start an agent with this shell command in a new network namespace; it is killed at the end."""
    if os.geteuid() != 0:
        pytest.skip("needs root: creates a network namespace")
    require_program("ip", "apt install iproute2")
    words = ["unshare", "--net", "bash", "-c", f"ip link set lo up && exec {text}"]
    agent = AgentProcess(words, environment, directory)
    try:
        agent.until(lambda: "is running" in agent.stderr)
        yield agent
    finally:
        agent.process.kill()
        agent.process.wait()


def in_network(agent: AgentProcess, text: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a shell command in the agent's network namespace."""
    words = ["nsenter", f"--net=/proc/{agent.process.pid}/ns/net", "bash", "-c", text]
    return subprocess.run(words, env=environment, capture_output=True, encoding="utf-8", timeout=60, check=False)


def web_config(directory: Path) -> Path:
    """Write the web configuration of the page, and the files that it refers to."""
    [text] = [block.text for block in all_blocks() if f"# {WEB_CONFIG}" in block.text]
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    server.cert_chain_pems[0].write_to_path(directory / "server.crt")
    server.private_key_pem.write_to_path(directory / "server.key")
    authority.cert_pem.write_to_path(directory / "clients-ca.crt")
    path = directory / "web.yml"
    path.write_text(text, encoding="utf-8")
    return path


@commands_for("test_an_agent_starts_with_a_command_of_a_page")
def test_an_agent_starts_with_a_command_of_a_page(
    command: Command, environment: dict[str, str], tmp_path: Path
) -> None:
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


@commands_for("test_make_run_starts_an_agent_that_ctrl_c_stops")
def test_make_run_starts_an_agent_that_ctrl_c_stops(
    command: Command, environment: dict[str, str], tmp_path: Path
) -> None:
    require_program("curl", "apt install curl")
    # In a new process group, because Ctrl-C in a terminal signals the whole group: make and the agent.
    with started(f"setsid {command.text} -C {ROOT} VENV={sys.prefix}", environment, tmp_path) as make:
        try:
            make.until(lambda: "GiB" in make.stdout)
            for path in ("/", "/metrics", "/healthz", "/readyz", "/api/attribution"):
                assert f"http://127.0.0.1:9464{path} " in make.stderr or path == "/readyz"
                answer = in_network(make, f"curl -sf http://127.0.0.1:9464{path}", environment)
                assert answer.returncode == 0, path
                assert answer.stdout
            os.killpg(make.process.pid, signal.SIGINT)
            make.process.wait(60)
            until_gone(make.process.pid)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(make.process.pid, signal.SIGKILL)
    assert "POWER is the mean of the last " in make.stdout, "no figures of power"
    assert "exports to" not in make.stderr
    assert "Traceback" not in make.stderr


def until_gone(group: int) -> None:
    """Wait until a process group is empty, at most as long as an agent may take to stop."""
    deadline_s = time.monotonic() + 10.0
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline_s:
            os.killpg(group, 0)
            time.sleep(0.05)
        raise AssertionError(f"process group {group} still has processes")


@commands_for("test_an_agent_responds_to_requests_of_a_page")
def test_an_agent_responds_to_requests_of_a_page(command: Command, environment: dict[str, str], tmp_path: Path) -> None:
    require_program("curl", "apt install curl")
    with started("otel-gpu demo", environment, tmp_path) as agent:
        agent.until(lambda: "200" in in_network(agent, "curl -si http://127.0.0.1:9464/readyz", environment).stdout)
        # An event stream does not end; 8 s are enough for its first event.
        answer = in_network(agent, f"{command.text} --no-progress-meter --fail --max-time 8", environment)
        assert answer.returncode in (0, 28), answer.stderr
        assert "attribution" in answer.stdout


@commands_for("test_a_command_of_a_page_succeeds")
def test_a_command_of_a_page_succeeds(command: Command, environment: dict[str, str]) -> None:
    if "| jq" in command.text:
        require_program("jq", "apt install jq")
    result = subprocess.run(
        ["bash", "-c", command.text],
        env=environment, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
    # Without a GPU doctor exits with 1, which a pipe hides.
    assert result.returncode in ((0, 1) if "doctor" in command.text else (0,)), result.stderr
    assert result.stdout
    assert "Traceback" not in result.stderr


@commands_for("test_tests_named_in_a_page_exist")
def test_tests_named_in_a_page_exist(command: Command) -> None:
    words = [sys.executable, *command.words[1:], "--collect-only", "-p", "no:cacheprovider"]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert result.returncode == 0, result.stdout
    assert "::test_" in result.stdout


@commands_for("test_kustomizations_applied_in_a_page_can_be_built")
def test_kustomizations_applied_in_a_page_can_be_built(command: Command) -> None:
    [_, _, _, directory] = command.words
    objects = built(ROOT / directory)
    assert objects
    check_references(objects)


@commands_for("test_charts_installed_in_a_page_can_be_rendered")
def test_charts_installed_in_a_page_can_be_rendered(command: Command) -> None:
    [_, _, release, chart, *rest] = command.words
    result = run("helm", "template", release, ROOT / chart, "--kube-version", KUBERNETES, *rest)
    assert (result.returncode, result.stderr) == (0, "")
    objects = parse_strictly(result.stdout)
    assert {one["metadata"].get("namespace") for one in objects} - {None} == {rest[rest.index("--namespace") + 1]}
