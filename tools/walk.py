"""``make walk``: the amount of code that the demo runs.

Counts the distinct functions of the package that run in ten steady seconds of a simulated host, with a cycle, an OTLP
push and a scrape each second. Comprehensions, generator expressions, lambdas and class bodies are left out, and so is
generated code (the ``__init__`` of a dataclass), since it has no lines to read.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

FROM_S, UNTIL_S = 12.0, 22.0
"""Seconds after the start of the agent, when all names are resolved and all modules are loaded."""

_END_S = 20.0


class Function(NamedTuple):
    """A function of the package: its file within the package, its qualified name and its first line."""

    file: str
    name: str
    line: int

    @property
    def package(self) -> str:
        """The subpackage, empty for top-level modules."""
        folder, _, _ = self.file.rpartition("/")
        return folder.partition("/")[0]


# ---------------------------------------------------------------------------- in the agent's process


class Recorder:
    """Collects the code of every function called while it records, in all threads that start later."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()
        self._recording = False

    def install(self) -> None:
        """Record the calls of this thread and of threads that start later."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def start(self) -> None:
        """Start recording."""
        self._recording = True

    def stop(self) -> frozenset[CodeType]:
        """Stop recording and return the code that was called."""
        self._recording = False
        sys.setprofile(None)
        threading.setprofile(None)
        return frozenset(self._codes)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if self._recording and event == "call":
            self._codes.add(frame.f_code)


def functions(codes: Iterable[CodeType], root: Path) -> list[Function]:
    """The named functions among these in files below ``root``, sorted."""
    found = set()
    for code in codes:
        path = Path(code.co_filename)
        # A class body has neither flag of a function: it does not create its own fast locals.
        if path.is_relative_to(root) and code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<"):
            found.add(Function(path.relative_to(root).as_posix(), code.co_qualname, code.co_firstlineno))
    return sorted(found)


def record(out: Path, from_s: float, until_s: float, arguments: Sequence[str]) -> int:
    """Run the command line with these arguments, write the functions that ran between two times, and end the agent."""
    recorder = Recorder()
    recorder.install()
    import otel_gpu  # noqa: PLC0415 - not before its calls are recorded
    from otel_gpu.cli import main  # noqa: PLC0415

    root = Path(otel_gpu.__file__).parent

    def watch() -> None:
        sys.setprofile(None)  # this thread is not the agent's
        time.sleep(from_s)
        recorder.start()
        time.sleep(until_s - from_s)
        out.write_text(json.dumps(functions(recorder.stop(), root)), encoding="utf-8")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="walk", daemon=True).start()
    return main(list(arguments))


# ---------------------------------------------------------------------------- around it


class _Receiver(BaseHTTPRequestHandler):
    """Accepts OTLP over HTTP."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base's
        pass


@contextmanager
def _receiver() -> Iterator[str]:
    """The URL of an OTLP receiver."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def walk(from_s: float = FROM_S, until_s: float = UNTIL_S) -> list[Function]:
    """The functions that an agent on a simulated host runs between two times after its start."""
    with tempfile.TemporaryDirectory() as directory, _receiver() as url:
        out, port = Path(directory) / "functions.json", _free_port()
        command = (
            *(sys.executable, __file__, "--record", str(out), "--from", str(from_s), "--until", str(until_s), "--"),
            *("run", "--source", "sim", "--interval", "1s", "--listen", f"127.0.0.1:{port}"),
            *("--exporters", "otlp,prometheus", "--otlp-endpoint", url, "--export-interval", "1s"),
            *("--control-socket", "none"),
        )
        began_s = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as agent:  # noqa: S603
            while agent.poll() is None and time.monotonic() < began_s + until_s + _END_S:
                _scrape(f"http://127.0.0.1:{port}/metrics")
                time.sleep(1.0 - (time.monotonic() - began_s) % 1.0)
            agent.kill()
            _, errors = agent.communicate()
        if not out.exists():
            raise RuntimeError(f"the agent ended too early: {errors.strip()[-2000:]}")
        return [Function(*each) for each in json.loads(out.read_text(encoding="utf-8"))]


def _scrape(url: str) -> None:
    """Scrape once; ignore an agent that does not respond yet or any more."""
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})  # noqa: S310 - ours
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - ours
            answer.read()
    except (urllib.error.URLError, OSError):
        pass


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def summary(found: Sequence[Function]) -> Iterator[str]:
    """Lines with the counts by package and in total."""
    count = Counter(function.package for function in found)
    modules = Counter(package for package, _ in {(function.package, function.file) for function in found})
    yield f"{'package':16}{'functions':>10}{'modules':>10}"
    for package in sorted(count, key=lambda package: (-count[package], package)):
        yield f"{package or '(top level)':16}{count[package]:10}{modules[package]:10}"
    yield f"{'total':16}{count.total():10}{modules.total():10}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the walk; with ``--record``, run as the recorded agent."""
    parser = argparse.ArgumentParser(prog="python -m tools.walk", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print every function as well")
    parser.add_argument("--record", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--from", type=float, default=FROM_S, dest="from_s", metavar="S", help="first second (12)")
    parser.add_argument("--until", type=float, default=UNTIL_S, dest="until_s", metavar="S", help="last second (22)")
    parser.add_argument("command", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.record is not None:
        return record(given.record, given.from_s, given.until_s, given.command)
    found = walk(given.from_s, given.until_s)
    if given.list:
        print("\n".join(f"{each.file}:{each.line} {each.name}" for each in found))
    print("\n".join(summary(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
