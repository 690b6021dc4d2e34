"""``otel-gpu top`` in a terminal: keys, sizes, signals, this host, and a running agent."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from otel_gpu.config.values import Address
from otel_gpu.view.builder import Subject
from otel_gpu.web.bodies import Bodies
from otel_gpu.web.endpoints import EVENTS_PATH, EventStream
from otel_gpu.web.server import WebListener
from tests import web
from tests.agent_process import AgentProcess, agent_process
from tests.builders import attribution
from tests.cli import command
from tests.e2e.terminal import PATIENCE_S, TerminalSession, terminal_session
from tests.unit.top.emulator import Emulator
from tests.web import ANY_PORT

LEAVE = "\x1b[?25h\x1b[?1049l"
SIMULATED = ("top", "--source", "sim", "--interval", "1s")


def names(screen: Emulator) -> list[str]:
    """The visible names of workloads, from the top."""
    lines = screen.lines
    heading = next(at for at, line in enumerate(lines) if "WORKLOAD" in line)
    return [line[2:].split("  ")[0] for line in lines[heading + 1 : -1] if line]


def assert_restored(session: TerminalSession) -> None:
    """Screen, cursor and modes are restored, and no output follows."""
    screen = session.screen
    assert (screen.alternate, screen.cursor, screen.wraps, screen.style) == (False, True, True, "")
    assert screen.raw.endswith(LEAVE)
    assert session.modes == session.modes_before


def serving(name: str = "vllm-chat", address: Address = ANY_PORT) -> AbstractContextManager[WebListener]:
    """A server with an agent's event stream and a container of this name."""
    stream = EventStream(Subject("1.2.3", "node-1", 5.0), lambda: attribution(name), Bodies())
    return web.serving({EVENTS_PATH: stream.route}, address=address)


def test_keys_sort_filter_open_freeze_explain_and_quit() -> None:
    with terminal_session(*command(*SIMULATED)) as session:
        session.shows("reading the GPUs…")
        session.shows("16 workloads")
        screen = session.screen
        assert names(screen)[:3] == ["vllm-chat", "trainer", "reranker"]
        assert "SIMULATED" in screen.lines[0]
        session.press("n")
        session.until(lambda screen: names(screen)[0] == "184219", "names in order")
        session.press("n")
        session.until(lambda screen: names(screen)[0] == "vllm-chat" and names(screen)[1] == "trainer")
        session.press("/OLLA")
        session.until(lambda screen: names(screen) == ["ollama"])
        assert screen.lines[-1].startswith("filter: OLLA_")
        session.press("\r\r")  # keep the filter, open what it found
        session.shows("Image: ollama/ollama:0.4.2")
        session.until(lambda screen: re.search(r"^    \d+ ollama ", screen.text, re.MULTILINE) is not None)
        session.press("\x1b")
        session.shows("16 workloads")
        session.press(" ")
        session.shows("FROZEN at")
        session.press(" h")
        session.shows("≈ is estimated")
        session.press("x")
        session.until(lambda screen: "FROZEN" not in screen.text and "q quit" in screen.lines[-1])
        session.press("q")
        assert session.end() == 0
        assert_restored(session)


def test_a_resized_window_is_filled_and_a_small_one_shows_the_minimum_size() -> None:
    with serving() as server, terminal_session(*command("top", "--url", server.url)) as session:
        session.shows("5 workloads")
        assert "WHERE" not in session.screen.text
        session.resize(140, 40)
        session.until(lambda screen: "WHERE" in screen.text and "q quit" in screen.lines[39], "the large window")
        session.resize(30, 5)
        session.shows("Terminal too small: 30x5;")
        session.resize(60, 15)
        session.until(lambda screen: "vllm-chat" in screen.text and "q quit" in screen.lines[14], "the middle one")
        session.press("\x03")
        assert session.end() == 0
        assert_restored(session)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_it_and_restores_the_terminal(number: signal.Signals) -> None:
    with terminal_session(*command(*SIMULATED)) as session:
        session.shows("reading the GPUs…")
        assert session.modes != session.modes_before
        assert session.end(number) == 0
        assert_restored(session)


def test_control_characters_in_a_name_have_no_effect() -> None:
    hostile = "\x1b[2J\x1b]0;pwned\x07\u202e日本"
    with serving(hostile) as server, terminal_session(*command("top", "--url", server.url), columns=120) as session:
        session.shows("\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}]0;pwned")
        session.press("p")
        session.shows("Namespace: inference")
        assert "日本" in session.screen.text
        session.press("q")
        assert session.end() == 0


@pytest.mark.parametrize(
    ("environment", "absent"),
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "[^\x00-\x7f]"),
        pytest.param({"NO_COLOR": "1"}, r"\x1b\[[0-9;]*[1-9]m", marks=pytest.mark.long),
    ],
    ids=["a terminal that knows ASCII only", "NO_COLOR"],
)
def test_the_environment_determines_characters_and_colours(environment: dict[str, str], absent: str) -> None:
    with (
        serving("日本") as server,
        terminal_session(*command("top", "--url", server.url), environment=environment) as session,
    ):
        session.shows("unidentified")
        session.press("q")
        assert session.end() == 0
        assert re.search(absent, session.screen.raw) is None
        assert_restored(session)


def test_a_missing_agent_is_reported_in_one_line_on_the_restored_terminal() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with terminal_session(*command("top", "--url", url)) as session:
            assert session.end() == 1
            after = session.screen.raw.partition(LEAVE)[2]
            assert after == f"otel-gpu: the agent at {url}: connection refused\r\n"
            assert session.modes == session.modes_before


# ---------------------------------------------------------------------------- of a running agent


def order_of(agent: AgentProcess) -> list[tuple[str, str]]:
    """Name and pod of each workload in the agent's JSON, the largest first."""
    workloads = json.loads(agent.get("/api/attribution").body)["workloads"]

    def held(workload: dict[str, list[dict[str, dict[str, int | None]]]]) -> int:
        parts = [part["memory"] for part in workload["gpus"]]
        return sum((part["measured"] or 0) + (part["inferred"] or 0) for part in parts)

    ordered = sorted(workloads, key=lambda workload: (-held(workload), workload["name"]))
    return [(workload["name"], workload["pod"] or "") for workload in ordered]


def is_beginning(shown: list[str], whole: list[tuple[str, str]]) -> bool:
    """Whether ``shown`` begins ``whole``. A name may be cut in the middle, or have a suffix from its pod's name."""
    if len(shown) < 10:
        return False
    for cut, (name, pod) in zip(shown, whole, strict=False):
        begins, _, ends = cut.partition("…")
        name_begins, _, suffix = begins.partition(" (")
        if not (name.startswith(name_begins) and (name.endswith(ends) or pod.endswith((ends or suffix).rstrip(")")))):
            return False
    return True


@contextmanager
def demo(directory: Path, listen: str = "127.0.0.1:0") -> Iterator[AgentProcess]:
    with agent_process("demo", "--interval", "1s", "--listen", listen, directory=directory) as agent:
        agent.until(lambda: "/healthz" in agent.stderr)
        yield agent


def test_the_order_on_the_screen_is_that_of_the_agents_json(tmp_path: Path) -> None:
    with demo(tmp_path) as agent, terminal_session(*command("top", "--url", f"http://{agent.address}")) as session:
        session.shows("16 workloads")
        session.until(lambda screen: is_beginning(names(screen), order_of(agent)), "the agent's order")
        session.press("m")
        session.until(lambda screen: is_beginning(names(screen), order_of(agent)[::-1]), "the other way round")
        session.press("q")
        assert session.end() == 0


@pytest.mark.long
def test_a_killed_agent_is_shown_as_lost_until_it_is_back(tmp_path: Path) -> None:
    with demo(tmp_path) as agent:
        address = agent.address
        with terminal_session(*command("top", "--url", f"http://{address}")) as session:
            session.shows("16 workloads")
            agent.process.kill()
            session.until(
                lambda screen: "Lost the agent at" in screen.text and "refused" in screen.text, "that it is lost"
            )
            screen = session.screen
            row = next(at for at, line in enumerate(screen.lines) if "trainer" in line)
            assert screen.styles_of(row) == {"\x1b[2m"}  # dim only
            assert "The figures are old" in " ".join(screen.lines[:4])
            with demo(tmp_path, str(address)):
                session.until(
                    lambda screen: "Lost the agent" not in screen.text and "16 workloads" in screen.text, "it again"
                )
                assert screen.styles_of(row) != {"\x1b[2m"}
                session.press("q")
                assert session.end() == 0
                assert_restored(session)


@pytest.mark.long
def test_job_control_restores_the_terminal_and_the_screen() -> None:
    """^Z stops a process only under a shell with job control."""
    script = '"$@"; echo stopped; fg >/dev/null; echo done'
    with terminal_session("/bin/sh", "-mc", script, "sh", *command(*SIMULATED)) as session:
        session.shows("16 workloads")
        session.press("\x1a")
        session.until(lambda screen: f"{LEAVE}" in screen.raw and "stopped" in screen.raw, "the shell")
        session.until(lambda screen: screen.alternate and "16 workloads" in screen.text, "the screen again")
        session.press("q")
        assert session.end() == 0
        assert session.screen.raw.rstrip().endswith("done")


def test_an_exception_restores_the_terminal() -> None:
    """The screen is restored before the error line."""
    code = (
        "import otel_gpu.cli.top as c, otel_gpu.cli as cli, sys\n"
        "def fail(*_): raise RuntimeError('oops')\n"
        "c.draw = fail\n"
        "sys.exit(cli.main(['top', '--source', 'sim']))\n"
    )
    with terminal_session(sys.executable, "-c", code) as session:
        assert session.end() == 1
        assert "internal error: RuntimeError: oops" in session.screen.raw.partition(LEAVE)[2]
        assert session.modes == session.modes_before


@pytest.mark.long
def test_it_ends_although_the_terminal_is_blocked() -> None:
    """As over a network that hangs: the output is not read and the buffer is full."""
    with terminal_session(*command(*SIMULATED), columns=250, rows=100) as session:
        session.shows("reading the GPUs…")
        session.until_blocked()
        session.process.terminate()
        assert session.process.wait(PATIENCE_S) == 0
