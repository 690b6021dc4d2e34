"""A real Podman with a service that has Docker's API, in a temporary directory, with an image of busybox.

Root's, or rootless as a user without a name: without ranges in /etc/subuid, its containers have that one uid.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import docker
import pytest

from tests.real.docker_engine import PATIENCE_S, REMEDY, SLEEP, busybox_image, kill_below, unmount_below, until
from tests.real.programs import require_program

IMAGE: Final = "localhost/bb:latest"


class PodmanEngine:
    """``podman`` and its service, as user ``uid``."""

    def __init__(self, directory: Path, uid: int = 0) -> None:
        self.directory = directory
        self.uid = uid
        self.base_url = f"unix://{directory}/podman.sock"
        self._service: subprocess.Popen[bytes] | None = None
        self._configure()

    def podman(self, *words: str) -> str:
        """Run a command and return its output."""
        result = subprocess.run(
            self._words(*words),
            env=self._environment(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert result.returncode == 0, result.stderr.decode()
        return result.stdout.decode().strip()

    def start(self) -> None:
        """Start the service, and wait for its socket."""
        words = self._words("system", "service", "--time=0", self.base_url)
        with (self.directory / "log").open("ab") as log:
            self._service = subprocess.Popen(
                words, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until((self.directory / "podman.sock").is_socket)

    def stop(self) -> None:
        """Stop the service; containers keep running, because they are not its children."""
        if self._service is not None:
            self._service.terminate()
            self._service.wait(PATIENCE_S)
            (self.directory / "podman.sock").unlink(missing_ok=True)

    def run(self, name: str, *options: str) -> str:
        """Run a sleeping container."""
        return self.podman("run", "--detach", "--network=none", f"--name={name}", *options, IMAGE, *SLEEP)

    def inspect(self, key: str) -> dict[str, Any]:
        """The service's description of a container."""
        client = docker.APIClient(self.base_url, timeout=PATIENCE_S)
        try:
            document: dict[str, Any] = client.inspect_container(key)
        finally:
            client.close()
        return document

    def end(self) -> None:
        """Remove all containers, leftover processes and mounts."""
        try:
            self.podman("rm", "--all", "--force", "--time=0")
        finally:
            self.stop()
            kill_below(self.directory)  # a rootless one has a process that keeps its namespaces
            unmount_below(self.directory)

    def _configure(self) -> None:
        conmon, runc = self._program("conmon"), self._program("runc")
        # Locks are in a file, because all Podmans of a host share the default in shared memory. The limits are low
        # enough for hosts where root cannot raise its own.
        (self.directory / "containers.conf").write_text(
            f"""
            [containers]
            default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
            [engine]
            cgroup_manager = "cgroupfs"
            conmon_path = ["{conmon}"]
            events_logger = "file"
            lock_type = "file"
            runtime = "runc"
            [engine.runtimes]
            runc = ["{runc}"]
            """,
            encoding="utf-8",
        )
        policy = self.directory / ".config/containers/policy.json"
        policy.parent.mkdir(parents=True)
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}', encoding="utf-8")
        for path in (self.directory, policy.parent, policy.parent.parent):
            os.chown(path, self.uid, self.uid)

    def _program(self, name: str) -> Path:
        """A program where the user may reach it: engines that were unpacked in root's home directory are mounted."""
        found = require_program(name, REMEDY).resolve()
        unpacked = next((each for each in found.parents if each.name == "engines"), None)
        if self.uid == 0 or unpacked is None:
            return found
        mounted = self.directory / "engines"
        if not mounted.is_dir():
            mounted.mkdir()
            subprocess.run(["mount", "--bind", str(unpacked), str(mounted)], check=True, capture_output=True)
        return mounted / found.relative_to(unpacked)

    def _environment(self) -> dict[str, str]:
        own = {"HOME": str(self.directory), "CONTAINERS_CONF": str(self.directory / "containers.conf")}
        if self.uid:
            own["XDG_RUNTIME_DIR"] = str(self.directory)
        return {"PATH": os.environ["PATH"], **own}

    def _words(self, *words: str) -> list[str]:
        own = {"--root": "data", "--runroot": "run", "--tmpdir": "tmp"}
        places = [f"{flag}={self.directory / name}" for flag, name in own.items()]
        as_user = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"] if self.uid else []
        return [*as_user, str(self._program("podman")), *places, "--storage-driver=vfs", *words]


@contextmanager
def podman_engine(uid: int = 0) -> Iterator[PodmanEngine]:
    """Start a service of a user with an image; everything is removed at the end."""
    if os.geteuid() != 0:
        pytest.skip("needs root: runs containers")
    require_program("podman", REMEDY)
    image = busybox_image()
    # A short path: the path of a unix socket has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="og-podman-"))
    try:
        engine = PodmanEngine(directory, uid)
        try:
            (directory / "image.tar").write_bytes(image)
            engine.podman("import", str(directory / "image.tar"), IMAGE)
            engine.start()
            yield engine
        finally:
            engine.end()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
