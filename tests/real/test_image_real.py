"""The image, built from the Dockerfile and run by a real Docker engine, on a base image with this machine's Python."""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import docker
import pytest

from otel_gpu.version import __version__
from tests.real.docker_engine import REMEDY, DockerEngine, docker_engine, until
from tests.real.programs import require_program

pytestmark = pytest.mark.real

ROOT: Final = Path(__file__).parents[2]
IMAGE: Final = "otel-gpu:test"
# Parts of Python that the base image leaves out; its own tests alone are half of it.
SKIPPED: Final = {
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "__pycache__",
}
COMPILER: Final = "usr/bin/cc"
MEMORY: Final = Path("/dev/shm")
ROOM_BYTES: Final = 4 << 30
LOCKED: Final[dict[str, Any]] = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
}


class Rootfs:
    """A tar of a root file system, with all parent directories."""

    def __init__(self) -> None:
        self._packed = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._packed, mode="w", dereference=True)
        self._there: set[str] = set()

    def add(self, source: Path, name: str | None = None) -> None:
        """Add a file or a directory, at its own path or another one."""
        at = (name or str(source)).lstrip("/")
        self._parents(at)
        if at not in self._there:
            self._there.add(at)
            self._tar.add(source, at, filter=_owned_by_root)

    def directory(self, name: str, mode: int = 0o755) -> None:
        """Add an empty directory."""
        self._parents(name)
        if name not in self._there:
            self._there.add(name)
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            self._tar.addfile(entry)

    def text(self, name: str, text: str, mode: int = 0o644) -> None:
        """Add a file with this text."""
        self._parents(name)
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(text.encode()), mode
        self._tar.addfile(entry, io.BytesIO(text.encode()))

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        self._parents(name)
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)

    def packed(self) -> bytes:
        """The tar."""
        self._tar.close()
        return self._packed.getvalue()

    def _parents(self, name: str) -> None:
        for parent in reversed(Path(name).parents[:-1]):
            if str(parent) not in self._there:
                self._there.add(str(parent))
                entry = tarfile.TarInfo(str(parent))
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                self._tar.addfile(entry)


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(entry.name).name
    if name in SKIPPED or name.startswith("config-3"):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def libraries(programs: Iterable[Path]) -> set[Path]:
    """The shared libraries that the loader finds for these programs."""
    words = ["ldd", *map(str, programs)]
    output = subprocess.run(words, capture_output=True, encoding="utf-8", check=False).stdout
    return {Path(found) for found in re.findall(r"(?:=> |^\t)(/\S+) \(0x", output, re.MULTILINE)}


def base(*, wheels: Path | None = None) -> bytes:
    """A replacement for python:3.11-slim: this Python, the libraries of its packages, and a shell.

    With ``wheels`` it replaces the base of the build stage: it has these wheels and a fake compiler, which must not be
    in the image.
    """
    rootfs = Rootfs()
    python = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}").resolve()
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))
    packages = Path(sysconfig.get_path("purelib"))
    rootfs.add(python)
    rootfs.link(f"{str(python.parent).lstrip('/')}/python3", python.name)
    rootfs.add(library)
    bundled = sysconfig.get_config_var("WHEEL_PKG_DIR")  # Debian's ensurepip has its wheels there
    if bundled:
        rootfs.add(Path(bundled))
    for one in sorted(libraries([python, *library.glob("lib-dynload/*.so"), *packages.rglob("*.so*")])):
        if not one.is_relative_to(packages):
            rootfs.add(one)
    rootfs.add(require_program("busybox", REMEDY), "bin/busybox")
    for applet in ("sh", "rm", "cat", "id"):
        rootfs.link(f"bin/{applet}", "busybox")
    rootfs.directory("tmp", 0o1777)
    rootfs.text("etc/passwd", "root:x:0:0::/:/bin/sh\n")
    if wheels is not None:
        rootfs.add(wheels, "wheels")
        rootfs.text(COMPILER, "#!/bin/sh\nexit 1\n", 0o755)
    return rootfs.packed()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerEngine]:
    """An engine with the image, built without a network and without BuildKit."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            # Its storage driver copies the whole image for every step of a build.
            if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
                patch.setattr(tempfile, "tempdir", str(MEMORY))
            started = stack.enter_context(docker_engine())
        # With several workers, the first one builds the image and the others wait for it.
        run_id = os.environ.get("PYTEST_XDIST_TESTRUNUID")
        directory = tmp_path_factory.getbasetemp()
        saved = (directory.parent if run_id else directory) / f"image-{run_id}.tar"
        with saved.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if saved.exists():
                started.client.load_image(saved.read_bytes())
            else:
                build_image(started, tmp_path_factory.mktemp("wheels"))
                saved.write_bytes(b"".join(started.client.get_image(IMAGE)))
        yield started


def build_image(engine: DockerEngine, wheels: Path) -> None:
    """Build the image without a network, from wheels downloaded here."""
    pins = [word for name in ("runtime", "build") for word in ("-r", str(ROOT / f"constraints/{name}.txt"))]
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps"]
    subprocess.run([*words, "--only-binary=:all:", "-d", str(wheels), *pins], check=True, timeout=600)
    path = f"ENV PATH={Path(sys.base_prefix).resolve()}/bin:/usr/bin:/bin"
    offline = ["ENV PIP_NO_INDEX=1", "ENV PIP_FIND_LINKS=/wheels"]
    for tag, packed, changes in (("slim", base(), [path]), ("build", base(wheels=wheels), [path, *offline])):
        engine.client.import_image_from_data(packed, repository="base", tag=tag, changes=changes)
    arguments = {"BASE": "base:slim", "BUILD_BASE": "base:build", "VERSION": __version__, "REVISION": "abc"}
    options = {"buildargs": arguments, "network_mode": "none", "rm": True, "forcerm": True, "decode": True}
    output = list(engine.client.build(path=str(ROOT), tag=IMAGE, **options))
    assert not [line for line in output if "error" in line], "".join(line.get("stream", "") for line in output)


def run(engine: DockerEngine, *command: str, host: dict[str, Any] | None = None, **options: Any) -> tuple[int, str]:
    """Run a container without privileges; returns its exit code and output."""
    config = engine.client.create_host_config(network_mode="none", **LOCKED | (host or {}))
    key = engine.client.create_container(IMAGE, list(command) or None, host_config=config, **options)["Id"]
    try:
        engine.client.start(key)
        code: int = engine.client.wait(key, timeout=60)["StatusCode"]
        return code, engine.client.logs(key).decode()
    finally:
        engine.remove(key)


def test_the_image_runs_the_agent(engine: DockerEngine) -> None:
    assert run(engine, "--version") == (0, f"otel-gpu {__version__}\n")


def test_the_image_has_labels(engine: DockerEngine) -> None:
    config = engine.client.inspect_image(IMAGE)["Config"]
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
    assert labels.pop("description")
    assert labels == {"title": "otel-gpu", "licenses": "Apache-2.0", "version": __version__, "revision": "abc"}


def test_the_default_user_of_the_image_is_not_root(engine: DockerEngine) -> None:
    user = engine.client.inspect_image(IMAGE)["Config"]["User"]
    assert user == "65532:65532"
    code, output = run(engine, "-u", entrypoint="/bin/id")
    assert (code, output.strip()) == (0, "65532")


def test_build_tools_are_not_in_the_image(engine: DockerEngine) -> None:
    key = engine.client.create_container(IMAGE)["Id"]
    exported = b"".join(engine.client.export(key))
    engine.remove(key)
    with tarfile.open(fileobj=io.BytesIO(exported)) as tar:
        names = set(tar.getnames())
        writable = [one.name for one in tar if one.isfile() and one.mode & 0o002]
    assert any(name.startswith("opt/otel-gpu/lib/") and name.endswith("/otel_gpu/cli/__init__.py") for name in names)
    assert COMPILER not in names
    assert not [name for name in names if name.startswith(("wheels", "src", "tmp/"))]
    ours = [name for name in names if name.startswith("opt/otel-gpu/")]
    assert not [name for name in ours if re.search(r"/(pip|setuptools|hatchling|pytest)(-|/|$)", name)]
    assert writable == []


def test_the_size_of_the_image_is_as_documented(engine: DockerEngine) -> None:
    layers = engine.client.history(IMAGE)
    [base_at] = [index for index, layer in enumerate(layers) if layer["Comment"].startswith("Imported from")]
    size_mb = sum(layer["Size"] for layer in layers[:base_at]) / 1e6
    print(f"{IMAGE} adds {size_mb:.1f} MB to its base")
    page = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
    [recorded_mb] = re.findall(r"adds at most ([0-9]+) MB to its base", page)
    assert 0.8 * float(recorded_mb) < size_mb <= float(recorded_mb)


@pytest.mark.parametrize("command", [(), ("demo", "--listen", "0.0.0.0:9464")], ids=["as it is", "demo"])
def test_a_container_without_privileges_becomes_healthy(engine: DockerEngine, command: tuple[str, ...]) -> None:
    config = engine.client.create_host_config(network_mode="none", **LOCKED)
    # The image's own check with a shorter interval.
    often = docker.types.Healthcheck(interval=1_000_000_000)
    key = engine.client.create_container(IMAGE, list(command) or None, host_config=config, healthcheck=often)["Id"]
    try:
        engine.client.start(key)
        until(lambda: engine.inspect(key)["State"]["Health"]["Status"] == "healthy")
        state = engine.inspect(key)["State"]
        assert state["Running"]
        assert "Traceback" not in engine.client.logs(key).decode()
        engine.client.kill(key, "SIGTERM")
        assert engine.client.wait(key, timeout=60)["StatusCode"] == 0
    finally:
        engine.remove(key)


@pytest.mark.parametrize(
    ("capabilities", "reads"),
    [((), False), (("SYS_PTRACE",), False), (("SYS_PTRACE", "DAC_READ_SEARCH"), True)],
    ids=["none", "SYS_PTRACE", "both"],
)
def test_reading_processes_of_other_users_requires_both_capabilities(
    engine: DockerEngine, capabilities: tuple[str, ...], reads: bool
) -> None:
    """Only its owner may list a process's fd directory (mode 0500), and reading its links requires ptrace access."""
    host = {"pid_mode": "host", "binds": ["/proc:/host/proc:ro"], "cap_add": list(capabilities)}
    with subprocess.Popen(["sleep", "1000"], user=12_345, group=12_345, extra_groups=[]) as other:
        try:
            look = (
                f"import os; at = '/host/proc/{other.pid}/'; "
                "print(len([os.readlink(at + 'fd/' + one) for one in os.listdir(at + 'fd')]) > 0, "
                "len(open(at + 'maps').read()) > 0, len(open(at + 'environ').read()) > 0)"
            )
            code, output = run(engine, "-c", look, entrypoint="python3", user="0", host=host)
        finally:
            other.kill()
    assert (code == 0) == reads, output
    assert output.strip() == "True True True" if reads else "PermissionError" in output
