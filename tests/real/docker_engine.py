"""A real Docker engine in a temporary directory, with an image of busybox."""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import docker
import pytest

from tests.real.programs import require_program

REMEDY: Final = "run tools/engines.sh, and put its usr/bin, usr/sbin and bin on PATH"
PATIENCE_S: Final = 60.0
IMAGE: Final = "bb:latest"
SLEEP: Final = ("/bin/busybox", "sleep", "1000")


def until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, "timeout"
        time.sleep(0.01)


def busybox_image() -> bytes:
    """A tar of a root file system with busybox only."""
    busybox = require_program("busybox", REMEDY)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(busybox, "bin/busybox")
    return packed.getvalue()


def device_node(directory: Path, name: str) -> Path:
    """A device node of this name with the device number of ``/dev/null``."""
    node = directory / name
    os.mknod(node, 0o666 | 0o020000, os.makedev(1, 3))
    return node


class DockerEngine:
    """``dockerd``, and a client of the SDK that controls it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.base_url = f"unix://{directory}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Any = None

    def start(self) -> None:
        """Start it, and wait until it responds."""
        program = require_program("dockerd", REMEDY)
        runc = require_program("runc", REMEDY)
        # NVIDIA's runtime is runc with a prestart hook. Without a GPU, runc under that name and a hook that does
        # nothing are enough: the engine accepts requests for GPUs if it finds the hook, and sets its variables.
        hook = self.directory / "bin" / "nvidia-container-runtime-hook"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\nexit 0\n", encoding="ascii")
        hook.chmod(0o755)
        environment = os.environ | {"PATH": f"{hook.parent}:{os.environ['PATH']}"}
        own = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "pid"}
        words = [str(program), "-H", self.base_url, *(f"{flag}={self.directory / name}" for flag, name in own.items())]
        words += ["--iptables=false", "--bridge=none", "--storage-driver=vfs", f"--add-runtime=nvidia={runc}"]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        until(self._answers)

    def kill(self) -> None:
        """Kill it; its containers keep running."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.client.close()
        # Its containerd dies with it. If no process reaps it, the next daemon would wait for that pid to end.
        for name in ("pid", "docker.sock", "exec/containerd/containerd.pid"):
            (self.directory / name).unlink()

    def end(self) -> None:
        """Remove its containers, stop it, and remove leftover processes and mounts."""
        if self._process is None:
            return
        if self._client is not None:
            if self._process.poll() is None:
                for one in self.client.containers(all=True):
                    self.remove(one["Id"])
            self.client.close()
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        kill_below(self.directory)
        unmount_below(self.directory)

    @property
    def client(self) -> Any:
        """The SDK's client of this engine."""
        return self._client

    def create(self, name: str, *, host: dict[str, Any] | None = None, **options: Any) -> str:
        """Create a sleeping container; ``host`` is its host configuration."""
        host_config = self.client.create_host_config(network_mode="none", **(host or {}))
        # Process 1 of a container ignores SIGTERM without a handler, and a stop would take ten seconds.
        options = {"name": name, "host_config": host_config, "stop_signal": "SIGKILL", **options}
        key: str = self.client.create_container(IMAGE, list(SLEEP), **options)["Id"]
        return key

    def run(self, name: str, *, host: dict[str, Any] | None = None, **options: Any) -> str:
        """Create and start a sleeping container."""
        key = self.create(name, host=host, **options)
        self.client.start(key)
        return key

    def remove(self, key: str) -> None:
        """Kill and remove a container."""
        with suppress(docker.errors.NotFound):
            self.client.remove_container(key, force=True)

    def inspect(self, key: str) -> dict[str, Any]:
        """The engine's description of a container."""
        document: dict[str, Any] = self.client.inspect_container(key)
        return document

    def visible_devices(self, key: str) -> list[str]:
        """The GPUs that the engine passes to NVIDIA's hook for a container."""
        environ = Path(f"/proc/{self.inspect(key)['State']['Pid']}/environ")
        name = b"NVIDIA_VISIBLE_DEVICES="
        # A container counts as started while its process is still the runtime, with another environment.
        until(lambda: name in environ.read_bytes())
        [value] = [word.removeprefix(name) for word in environ.read_bytes().split(b"\0") if word.startswith(name)]
        return value.decode().split(",")

    def happened_s(self, key: str, action: str) -> float:
        """Unix time of a container's last event of this kind, by the engine's clock."""
        events = self.client.events(since=0, until=f"{time.time():.9f}", filters={"container": key}, decode=True)
        return float([event["timeNano"] for event in events if event["Action"] == action][-1] / 1e9)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "log").read_text(encoding="utf-8")
        # The SDK leaks the socket of a refused connection; the daemon refuses them between bind and listen.
        with socket.socket(socket.AF_UNIX) as connection:
            if connection.connect_ex(str(self.directory / "docker.sock")) != 0:
                return False
        self._client = docker.APIClient(self.base_url, timeout=PATIENCE_S)
        return True


def kill_below(directory: Path) -> None:
    """Kill leftover processes of an engine: those with its directory in their arguments, and their children."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"{directory}/".encode() in (entry / "cmdline").read_bytes():
                children = (entry / "task" / entry.name / "children").read_text(encoding="ascii").split()
                for pid in (*children, entry.name):
                    os.kill(int(pid), signal.SIGKILL)


def unmount_below(directory: Path) -> None:
    """Unmount leftover mounts of an engine in its directory."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    for mount in reversed([one for one in mounts if one.startswith(f"{directory}/")]):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)


@contextmanager
def docker_engine() -> Iterator[DockerEngine]:
    """Start an engine with an image; everything is removed at the end."""
    if os.geteuid() != 0:
        pytest.skip("needs root: runs containers")
    image = busybox_image()
    # A short path: the path of a unix socket has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="og-docker-"))
    engine = DockerEngine(directory)
    try:
        engine.start()
        engine.client.import_image_from_data(image, repository="bb", tag="latest")
        yield engine
    finally:
        engine.end()
        shutil.rmtree(directory, ignore_errors=True)
