"""A real containerd with CRI, and pods created as a kubelet does."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

import grpc

from tests.real.programs import require_program

IMAGE: Final = "registry.example/team/busybox:1"
PATIENCE_S: Final = 60.0
_REMEDY: Final = "on Debian and Ubuntu: apt install containerd runc busybox-static"
_SERVICE: Final = "/runtime.v1.RuntimeService/"
_HOSTS, _CONTAINERS = 2, 1  # NamespaceMode NODE and CONTAINER

# Protocol Buffers messages by field number: the agent's generated messages have only the calls that it makes.
Field: TypeAlias = "str | int | Fields | Sequence[Fields] | Sequence[str]"
Fields: TypeAlias = "Mapping[int, Field]"


def encoded(message: Fields) -> bytes:
    """The wire format of a message: integers as varints, everything else length-delimited."""
    return b"".join(_field(number, value) for number, value in message.items())


def _field(number: int, value: Field) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, str | Mapping):
        raw = value.encode() if isinstance(value, str) else encoded(value)
        return _varint(number << 3 | 2) + _varint(len(raw)) + raw
    return b"".join(_field(number, each) for each in value)


def _varint(number: int) -> bytes:
    groups = [number >> shift & 0x7F for shift in range(0, max(1, number.bit_length()), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def _map(entries: Mapping[str, str]) -> Sequence[Fields]:
    return [{1: key, 2: value} for key, value in entries.items()]


@dataclass(frozen=True)
class Pod:
    """A running pod sandbox."""

    name: str
    namespace: str
    uid: str
    sandbox_id: str
    config: Fields


class Containerd:
    """A containerd in a temporary directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "c.sock"
        self.pods: list[Pod] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._configuration = directory / "config.toml"
        self._configuration.write_text(_configuration(directory), encoding="utf-8")

    def start(self) -> None:
        """Start it, and wait until CRI responds."""
        program = require_program("containerd", _REMEDY)
        with (self.directory / "log").open("ab") as log:
            words = [str(program), "-c", str(self._configuration)]
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._answers():
            text = (self.directory / "log").read_text(encoding="utf-8", errors="replace")
            assert self._process.poll() is None, text
            assert time.monotonic() < deadline_s, text
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it; its containers keep running."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
            self._process = None

    def import_image(self) -> None:
        """Import an image with busybox."""
        archive = self.directory / "image.tar"
        archive.write_bytes(_image(require_program("busybox", _REMEDY)))
        ctr = require_program("ctr", _REMEDY)
        words = [str(ctr), "-a", str(self.socket), "-n", "k8s.io", "images", "import", "--snapshotter", "native"]
        subprocess.run([*words, str(archive)], check=True, capture_output=True, timeout=PATIENCE_S)

    def run_pod(self, name: str, namespace: str) -> Pod:
        """Start a sandbox in the cgroup of a burstable pod."""
        uid = str(uuid.uuid4())
        config: Fields = {
            1: {1: name, 2: uid, 3: namespace},
            3: str(self.directory / "logs"),
            6: _map(_labels(name, namespace, uid)),
            8: {1: f"/kubepods/burstable/pod{uid}", 2: {1: {1: _HOSTS, 2: _CONTAINERS, 3: _HOSTS}}},
        }
        sandbox_id = _first_text(self.call("RunPodSandbox", {1: config}))
        pod = Pod(name, namespace, uid, sandbox_id, config)
        self.pods.append(pod)
        return pod

    def run_container(self, pod: Pod, name: str, *, labels: Mapping[str, str] | None = None, attempt: int = 0) -> str:
        """Start a sleeping container and return its id. A restart is a new container with the next ``attempt``."""
        own = {"io.kubernetes.container.name": name, **(labels or {})}
        config: Fields = {
            1: {1: name, 2: attempt},
            2: {1: IMAGE},
            3: ["/bin/busybox", "sleep", "600"],
            9: _map(_labels(pod.name, pod.namespace, pod.uid) | own),
            10: _map({"io.kubernetes.container.restartCount": str(attempt)}),
            15: {2: {3: {1: _HOSTS, 2: _CONTAINERS, 3: _HOSTS}}},
        }
        created = self.call("CreateContainer", {1: pod.sandbox_id, 2: config, 3: pod.config})
        container_id = _first_text(created)
        self.call("StartContainer", {1: container_id})
        return container_id

    def stop_container(self, container_id: str) -> None:
        """Stop a container; it remains listed."""
        self.call("StopContainer", {1: container_id})

    def remove_container(self, container_id: str) -> None:
        """Remove a container."""
        self.call("RemoveContainer", {1: container_id})

    def remove_pod(self, pod: Pod) -> None:
        """Stop and remove a pod and its containers."""
        self.call("StopPodSandbox", {1: pod.sandbox_id})
        self.call("RemovePodSandbox", {1: pod.sandbox_id})
        self.pods.remove(pod)
        _remove_cgroups(pod.uid)

    def call(self, method: str, request: Fields) -> bytes:
        """Call a CRI method; returns the raw response."""
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            answer: bytes = channel.unary_unary(_SERVICE + method)(encoded(request), timeout=PATIENCE_S)
            return answer

    def _answers(self) -> bool:
        try:
            self.call("Version", {})
        except grpc.RpcError:
            return False
        return True

    def clear(self) -> None:
        """Remove all pods, shims, mounts and cgroups."""
        uids = [pod.uid for pod in self.pods]
        for pod in list(self.pods):
            with suppress(grpc.RpcError):
                self.remove_pod(pod)
        self.stop()
        for pid in _pids_with(str(self.directory)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(str(self.directory))]):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        for uid in uids:
            _remove_cgroups(uid)
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def containerd() -> Iterator[Containerd]:
    """Start a containerd with an image; everything is removed at the end."""
    for program in ("containerd", "ctr", "runc", "containerd-shim-runc-v2", "busybox"):
        require_program(program, _REMEDY)
    runtime = Containerd(Path(tempfile.mkdtemp(prefix="og-c-", dir="/tmp")))
    try:
        runtime.start()
        runtime.import_image()
        yield runtime
    finally:
        runtime.clear()


def pids_of(container_id: str) -> Sequence[int]:
    """The pids whose cgroup path has this id."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            if container_id in path.read_text(encoding="utf-8"):
                found.append(int(path.parent.name))
    return found


def _pids_with(word: str) -> Sequence[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if word.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def _remove_cgroups(uid: str) -> None:
    for pod in Path("/sys/fs/cgroup").glob(f"**/kubepods/burstable/pod{uid}"):
        # From the leaves up; a directory in use stays.
        for directory in (*sorted(pod.glob("**/"), reverse=True), pod.parent, pod.parent.parent):
            with suppress(OSError):
                directory.rmdir()


def _labels(name: str, namespace: str, uid: str) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.uid": uid,
    }


def _first_text(raw: bytes) -> str:
    """Field 1 of a message that begins with it: an id, shorter than 128 bytes."""
    assert raw[0] == 1 << 3 | 2
    return raw[2 : 2 + raw[1]].decode()


def _configuration(directory: Path) -> str:
    return f"""
version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{directory}/c.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{directory}/cni"
    conf_dir = "{directory}/cni"
"""


def _image(busybox: Path) -> bytes:
    """An image in the format of ``docker save``, with busybox as its only file and sleep as its command."""
    layer = _tar({"bin/busybox": busybox.read_bytes()})
    configuration = json.dumps(
        {
            "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
            "os": "linux",
            "config": {"Cmd": ["/bin/busybox", "sleep", "600"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]).encode()
    return _tar({"config.json": configuration, "layer.tar": layer, "manifest.json": manifest})


def _tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
