"""A real Docker engine of the test's own: its directory, its socket, one image with busybox in it."""

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

from tests.real.parts import needed_program

REMEDY: Final = "run tools/engines.sh, and put its usr/bin, usr/sbin and bin on PATH"
PATIENCE_S: Final = 60.0
IMAGE: Final = "bb:latest"
SLEEP: Final = ("/bin/busybox", "sleep", "1000")


def until(happens: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait for what other programs do."""
    deadline_s = time.monotonic() + patience_s
    while not happens():
        assert time.monotonic() < deadline_s, "did not happen"
        time.sleep(0.01)


def busybox_image() -> bytes:
    """A root file system with one program, as a tar."""
    busybox = needed_program("busybox", REMEDY)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(busybox, "bin/busybox")
    return packed.getvalue()


def device_node(directory: Path, name: str) -> Path:
    """A device node that opens like a GPU's, by that name; it is ``/dev/null``."""
    node = directory / name
    os.mknod(node, 0o666 | 0o020000, os.makedev(1, 3))
    return node


class DockerEngine:
    """``dockerd``, until it is killed; and the SDK to tell it what to do, which the agent never does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.base_url = f"unix://{directory}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Any = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = needed_program("dockerd", REMEDY)
        runc = needed_program("runc", REMEDY)
        # NVIDIA's runtime is runc with a hook before it; by that name, plain runc does for a host without a GPU. Where
        # the hook is, requests for GPUs are served; one that does nothing shows what it would be told to do.
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
        """Kill it, as a crash would; its containers run on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.client.close()
        # Its containerd dies with it. Where nobody buries the dead, the next daemon would wait for that pid to end.
        for name in ("pid", "docker.sock", "exec/containerd/containerd.pid"):
            (self.directory / name).unlink()

    def end(self) -> None:
        """Remove its containers, stop it, and take away what it leaves."""
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
        """Create a container that sleeps; ``host`` is its host configuration."""
        host_config = self.client.create_host_config(network_mode="none", **(host or {}))
        # The first process of a container sleeps through SIGTERM, and everybody would wait ten seconds for its end.
        options = {"name": name, "host_config": host_config, "stop_signal": "SIGKILL", **options}
        made = self.client.create_container(IMAGE, list(SLEEP), **options)
        key: str = made["Id"]
        return key

    def run(self, name: str, *, host: dict[str, Any] | None = None, **options: Any) -> str:
        """Create a container that sleeps, and start it."""
        key = self.create(name, host=host, **options)
        self.client.start(key)
        return key

    def remove(self, key: str) -> None:
        """Kill and remove a container."""
        with suppress(docker.errors.NotFound):
            self.client.remove_container(key, force=True)

    def inspect(self, key: str) -> dict[str, Any]:
        """What the engine itself says of a container."""
        document: dict[str, Any] = self.client.inspect_container(key)
        return document

    def visible_devices(self, key: str) -> list[str]:
        """Which GPUs it has told the runtime to let a container see."""
        environ = Path(f"/proc/{self.inspect(key)['State']['Pid']}/environ")
        name = b"NVIDIA_VISIBLE_DEVICES="
        # The engine calls it started while it is still the runtime's own process, with another environment.
        until(lambda: name in environ.read_bytes())
        [value] = [word.removeprefix(name) for word in environ.read_bytes().split(b"\0") if word.startswith(name)]
        return value.decode().split(",")

    def happened_s(self, key: str, action: str) -> float:
        """When it says that this happened to a container for the last time, in Unix time."""
        told = self.client.events(since=0, until=f"{time.time():.9f}", filters={"container": key}, decode=True)
        return float([event["timeNano"] for event in told if event["Action"] == action][-1] / 1e9)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "log").read_text(encoding="utf-8")
        # The SDK leaks the socket of a connection that is refused, as one is between the daemon's bind and listen.
        with socket.socket(socket.AF_UNIX) as connection:
            if connection.connect_ex(str(self.directory / "docker.sock")) != 0:
                return False
        self._client = docker.APIClient(self.base_url, timeout=PATIENCE_S)
        return True


def kill_below(directory: Path) -> None:
    """Kill what an engine left running: whoever was started with its directory, and the containers under that."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"{directory}/".encode() in (entry / "cmdline").read_bytes():
                children = (entry / "task" / entry.name / "children").read_text(encoding="ascii").split()
                for pid in (*children, entry.name):
                    os.kill(int(pid), signal.SIGKILL)


def unmount_below(directory: Path) -> None:
    """Take away mounts that an engine left in its directory."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    for mount in reversed([one for one in mounts if one.startswith(f"{directory}/")]):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)


@contextmanager
def docker_engine() -> Iterator[DockerEngine]:
    """Start an engine with an image in it; at the end nothing of it is left."""
    if os.geteuid() != 0:
        pytest.skip("needs root: runs containers")
    image = busybox_image()
    # A short path: that of a unix socket has 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="og-docker-"))
    engine = DockerEngine(directory)
    try:
        engine.start()
        engine.client.import_image_from_data(image, repository="bb", tag="latest")
        yield engine
    finally:
        engine.end()
        shutil.rmtree(directory, ignore_errors=True)
