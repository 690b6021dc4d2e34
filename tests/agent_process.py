"""``otel-gpu run`` as a process that ends with the test."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from otel_gpu.config.values import Address, address
from tests.cli import clean_environment, command, restore_hangup, without_progress
from tests.web import Answer, ask

PATIENCE_S: Final = 60.0


class AgentProcess:
    """A running command, its output so far, and its endpoints."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        before_start: Callable[[], None] = lambda: None,
    ) -> None:
        """``before_start`` is called in the child."""

        def prepare() -> None:
            restore_hangup()
            before_start()

        self._out, self._err = directory / "stdout", directory / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=prepare,  # noqa: PLW1509
            )

    @property
    def stdout(self) -> str:
        """Its stdout so far."""
        return self._out.read_text(encoding="utf-8")

    @property
    def stderr(self) -> str:
        """Its stderr so far, without progress lines."""
        return without_progress(self.whole_stderr)

    @property
    def whole_stderr(self) -> str:
        """All that it wrote to stderr so far."""
        return self._err.read_text(encoding="utf-8")

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition while the process runs, at most ``PATIENCE_S``."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.stderr}"
            assert time.monotonic() < deadline_s, f"timeout: {self.stderr}"
            time.sleep(0.02)

    @property
    def address(self) -> Address:
        """The address of its endpoints, from its own output."""
        self.until(lambda: "/healthz" in self.stderr)
        found = re.search(r"http://(\S+)/healthz", self.stderr)
        assert found is not None
        return address(found[1])

    def get(self, path: str) -> Answer:
        """The response to a GET request."""
        return ask(self.address, path)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Signal it and wait for its end; returns the exit code and the duration in seconds."""
        started_s = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        return code, time.monotonic() - started_s


def simulated_agent(
    *flags: str, directory: Path, environment: Mapping[str, str] | None = None, listen: str = "127.0.0.1:0"
) -> AbstractContextManager[AgentProcess]:
    """Run an agent on a simulated host with a cycle per second."""
    common = ("run", "--source", "sim", "--interval", "1s", "--listen", listen)
    return agent_process(*common, *flags, directory=directory, environment=environment)


@contextmanager
def agent_process(
    *arguments: str, directory: Path, environment: Mapping[str, str] | None = None, words: Sequence[str] | None = None
) -> Iterator[AgentProcess]:
    """Start ``otel-gpu`` with these arguments, or another command line ``words``; it is killed at the end."""
    agent = AgentProcess(words or command(*arguments), clean_environment(environment), directory)
    try:
        yield agent
    finally:
        agent.process.kill()
        agent.process.wait()
