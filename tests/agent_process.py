"""``otel-gpu run`` as a process that ends with the test."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from otel_gpu.config.values import Address, address
from tests.cli import clean_environment, command, restore_hangup, without_progress
from tests.web import Answer, ask

PATIENCE_S: Final = 60.0


class AgentProcess:
    """A running command, what it has written so far, and what it serves."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        self._out, self._err = directory / "stdout", directory / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=restore_hangup,  # noqa: PLW1509
            )

    @property
    def stdout(self) -> str:
        """What it wrote to stdout so far."""
        return self._out.read_text(encoding="utf-8")

    @property
    def stderr(self) -> str:
        """What it wrote to stderr so far, but for its progress."""
        return without_progress(self.whole_stderr)

    @property
    def whole_stderr(self) -> str:
        """Everything it wrote to stderr so far."""
        return self._err.read_text(encoding="utf-8")

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, for as long as the process lives and patience lasts."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.stderr}"
            assert time.monotonic() < deadline_s, f"waited in vain: {self.stderr}"
            time.sleep(0.02)

    @property
    def address(self) -> Address:
        """The address it serves at, from its own output."""
        self.until(lambda: "/healthz" in self.stderr)
        found = re.search(r"http://(\S+)/healthz", self.stderr)
        assert found is not None
        return address(found[1])

    def get(self, path: str) -> Answer:
        """What it serves there."""
        return ask(self.address, path)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Signal it and wait for its end; its exit code, and how long it took in seconds."""
        started_s = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        return code, time.monotonic() - started_s


@contextmanager
def agent_process(
    *arguments: str, directory: Path, environment: Mapping[str, str] | None = None, words: Sequence[str] | None = None
) -> Iterator[AgentProcess]:
    """Start ``otel-gpu`` with these arguments (or other ``words``); killed at the end if it still runs."""
    agent = AgentProcess(words or command(*arguments), clean_environment(environment), directory)
    try:
        yield agent
    finally:
        agent.process.kill()
        agent.process.wait()
