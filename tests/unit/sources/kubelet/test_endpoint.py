"""Sockets that are not there, are no sockets, or have somebody else behind them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from otel_gpu.clock import SystemClock
from otel_gpu.errors import Unavailable
from otel_gpu.model import SourceState
from otel_gpu.sources.kubelet.cri import CriSource
from otel_gpu.sources.kubelet.endpoint import connected, open_channel, open_wire, socket_path
from otel_gpu.sources.kubelet.proto import cri_pb2, podresources_pb2
from otel_gpu.sources.kubelet.proto.cri_pb2 import VersionResponse
from tests.kubelet_servers import Runtime
from tests.unit.sources.kubelet.waiting import open_files, our_threads, reading, soon, until

VERSION = "/runtime.v1.RuntimeService/Version"


@contextmanager
def listening(path: Path, serve: Callable[[socket.socket], None] | None = None) -> Iterator[None]:
    """Somebody who listens and is no gRPC; without ``serve`` nobody accepts, and there is room for one to wait."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        assert serve is not None
                        serve(connection)

        thread = threading.Thread(target=accept)
        if serve is not None:
            thread.start()
        yield
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    if serve is not None:
        thread.join()


@pytest.mark.parametrize("endpoint", ["/run/x.sock", "unix:/run/x.sock", "unix:///run/x.sock"])
def test_an_endpoint_is_a_path_or_a_url_with_one(endpoint: str) -> None:
    assert socket_path(endpoint) == "/run/x.sock"


@pytest.mark.parametrize("endpoint", ["", "run/x.sock", "tcp://127.0.0.1:1", "unix://run", "npipe://x", "/run/\0"])
def test_anything_else_is_no_socket(endpoint: str) -> None:
    with pytest.raises(Unavailable, match="must be an absolute path"):
        socket_path(endpoint)


def test_a_path_that_no_socket_can_have_is_said() -> None:
    with pytest.raises(Unavailable, match="107 bytes at most"):
        socket_path("/" + "x" * 107)


def test_a_socket_that_does_not_exist_is_said(directory: Path) -> None:
    with pytest.raises(Unavailable, match=r"none\.sock does not exist; in a container, mount"):
        connected(str(directory / "none.sock"))


def test_a_file_is_no_socket(directory: Path) -> None:
    (directory / "x.sock").write_text("")
    with pytest.raises(Unavailable, match=r"x\.sock is no socket but a file"):
        connected(str(directory / "x.sock"))


def test_a_socket_that_its_owner_left_behind_is_said(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "x.sock"))
    with pytest.raises(Unavailable, match="nobody listens there any more"):
        connected(str(directory / "x.sock"))


def test_somebody_who_accepts_nobody_is_said(directory: Path) -> None:
    path = directory / "x.sock"
    with listening(path), socket.socket(socket.AF_UNIX) as first:
        first.connect(str(path))
        with pytest.raises(Unavailable, match="accepts no connections any more"):
            connected(str(path))


def test_a_socket_of_somebody_else_s_is_said(directory: Path) -> None:
    path = directory / "x.sock"
    with listening(path):
        path.chmod(0)
        script = """
            import os, sys
            from otel_gpu.errors import Unavailable
            from otel_gpu.sources.kubelet.endpoint import connected
            if os.geteuid() == 0:
                os.setuid(65534)
            try:
                connected(sys.argv[1])
            except Unavailable as error:
                print(error)
        """
        words = [sys.executable, "-c", textwrap.dedent(script), str(path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{path}: permission denied; run the agent as root, as it is root's on most nodes\n"


@pytest.mark.parametrize(
    "serve",
    [
        lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        lambda connection: connection.sendall(os.urandom(1000)),
        lambda connection: None,
    ],
    ids=["HTTP", "noise", "hangs up"],
)
def test_somebody_who_speaks_no_grpc_is_said(directory: Path, serve: Callable[[socket.socket], None]) -> None:
    path = directory / "x.sock"
    with listening(path, serve):
        channel = open_channel(str(path), 2.0)
        try:
            with pytest.raises(Unavailable, match=re.escape(str(path))) as raised:
                channel.ask(VERSION)
        finally:
            channel.close()
    assert "\n" not in str(raised.value)
    assert "lost or is no gRPC" in str(raised.value) or "no answer to Version within 2 s" in str(raised.value)


def test_a_closed_channel_says_so(runtime: Runtime) -> None:
    channel = open_channel(str(runtime.path), 2.0)
    channel.close()
    channel.close()
    with pytest.raises(Unavailable, match="closed before Version"):
        channel.ask(VERSION)


def test_a_path_with_odd_characters_is_a_path(directory: Path) -> None:
    server = Runtime(directory / "a b%20#?é.sock")
    # gRPC's server wants its path escaped as its client does; a name without that will do for it.
    plain = server.path
    server.path = directory / "plain.sock"
    server.start()
    plain.symlink_to(server.path)
    try:
        channel, wire = open_channel(str(plain), 5.0), open_wire(str(plain), 5.0, SystemClock())
        answers = [channel.ask(VERSION), wire.ask(VERSION) or b""]
        channel.close()
        wire.close()
        assert [VersionResponse.FromString(raw).runtime_name for raw in answers] == [b"containerd"] * 2
    finally:
        server.stop()


def test_a_hundred_losses_leave_neither_threads_nor_descriptors(runtime: Runtime) -> None:
    def once() -> None:
        with reading(CriSource(str(runtime.path), clock=SystemClock())) as names:
            until(names, lambda answer: answer.state is SourceState.UNAVAILABLE)

    runtime.answers["ListContainers"] = lambda: b"\x0a\xff"
    once()
    before = open_files()
    for _ in range(100):
        once()
    soon(lambda: open_files() <= before + 2)
    assert our_threads("cri") == 0


def test_nothing_of_grpc_is_imported_while_all_is_well_or_without_a_socket_and_nothing_is_printed(
    runtime: Runtime, directory: Path
) -> None:
    script = """
        import contextlib, socket, sys, threading
        from otel_gpu.clock import SystemClock
        from otel_gpu.sources.kubelet.cri import CriSource
        from otel_gpu.sources.kubelet.pod_resources import PodResourcesSource

        def look(kind, path):
            source = kind(path, clock=SystemClock(), timeout_s=0.5)
            source.read({})
            assert source.wait(20)
            print(source.read({}).state)
            source.close()

        for kind in (CriSource, PodResourcesSource):
            look(kind, sys.argv[1] + "/none.sock")
        look(CriSource, sys.argv[1] + "/cri.sock")
        assert "grpc" not in sys.modules
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(sys.argv[1] + "/x.sock")
        listener.listen()
        def serve():
            while True:
                with listener.accept()[0] as connection, contextlib.suppress(OSError):
                    connection.sendall(b"HTTP/1.1 400 Bad Request\\r\\n\\r\\n")
        threading.Thread(target=serve, daemon=True).start()
        for kind in (CriSource, PodResourcesSource):
            look(kind, sys.argv[1] + "/x.sock")
        assert "grpc" in sys.modules
    """
    words = [sys.executable, "-c", textwrap.dedent(script), str(directory)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "unavailable\nunavailable\nok\nunavailable\nunavailable\n",
        "",
    )


@pytest.mark.parametrize(("name", "made"), [("cri", cri_pb2), ("podresources", podresources_pb2)])
def test_the_messages_are_made_from_the_files_beside_them(name: str, made: object) -> None:
    text = (Path(cri_pb2.__file__).parent / f"{name}.proto").read_text(encoding="utf-8")
    written = {
        message[1]: {(field[2], int(field[3])) for field in re.finditer(r"(\w+) (\w+) = (\d+);", message[2])}
        for message in re.finditer(r"message (\w+) \{(.*?)\n\}", text, re.DOTALL)
    }
    file = made.DESCRIPTOR  # type: ignore[attr-defined]
    assert file.package == re.search(r"package ([\w.]+);", text)[1]  # type: ignore[index]
    assert written == {
        message.name: {(field.name, field.number) for field in message.fields}
        for message in file.message_types_by_name.values()
    }
