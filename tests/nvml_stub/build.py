"""Build of the stub with the system's C compiler, cached per set of options."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

LIBRARY: Final = "libnvidia-ml.so.1"
_SOURCES: Final = Path(__file__).parent
_FLAGS: Final = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-shared",
    "-pthread",
)


class BuildError(Exception):
    """The stub cannot be built; one line, with the compiler's output if there is any."""


def functions() -> tuple[str, ...]:
    """Every NVML function the stub can export."""
    return tuple(re.findall(r"^FN\((\w+)\)$", (_SOURCES / "functions.def").read_text(encoding="utf-8"), re.MULTILINE))


def build(
    *,
    without: Iterable[str] = (),
    process_info_bytes: Literal[24, 32] = 24,
    extra_flags: Sequence[str] = (),
    cache_dir: Path | None = None,
) -> Path:
    """Compile the library unless it is cached; returns its directory, for ``LD_LIBRARY_PATH``.

    ``without`` names functions this driver lacks. ``process_info_bytes=32`` is the R535 variant, whose process entries
    are 8 bytes longer and which has no ``nvmlDeviceGetRunningProcessDetailList``.
    """
    missing = set(without)
    if unknown := sorted(missing.difference(functions())):
        raise ValueError(f"the stub has no function {', '.join(unknown)} to leave out")
    if process_info_bytes == 32:
        missing.add("nvmlDeviceGetRunningProcessDetailList")
    compiler = _compiler()
    flags = (*_FLAGS, f"-DPROCESS_INFO_BYTES={process_info_bytes}", f"-Wl,-soname,{LIBRARY}", *extra_flags)
    exports = _version_script(name for name in functions() if name not in missing)
    cache = _cache_dir() if cache_dir is None else cache_dir
    target = cache / _fingerprint(compiler, *flags, exports)
    if not (target / LIBRARY).exists():
        cache.mkdir(parents=True, exist_ok=True)
        _compile_into(target, compiler, flags, exports)
    return target


def _compiler() -> str:
    wanted = os.environ.get("CC", "cc")
    found = shutil.which(wanted)
    if found is None:
        raise BuildError(f"no C compiler: '{wanted}' is not on PATH; install one (Debian: gcc) or name one in CC")
    return found


def _cache_dir() -> Path:
    """The user's cache directory; in the shared temporary directory it must belong to this user."""
    if cache_home := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache_home) / "otel-gpu" / "nvml-stub"
    path = Path(tempfile.gettempdir()) / f"otel-gpu-nvml-stub-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or path.is_symlink():
        raise BuildError(f"{path} belongs to another user: set XDG_CACHE_HOME to a directory of this user")
    return path


def _version_script(exported: Iterable[str]) -> str:
    """The linker's version script: it exports these functions and the call counters."""
    names = "".join(f" {name};" for name in (*exported, "stub_call_count", "stub_device_call_count"))
    return f"{{ global:{names} local: *; }};\n"


def _source_files() -> list[Path]:
    return sorted(path for path in _SOURCES.iterdir() if path.suffix in {".c", ".h", ".def"})


def _fingerprint(*parts: str) -> str:
    digest = hashlib.sha256("\0".join((platform.machine(), *parts)).encode())
    for path in _source_files():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


def _compile_into(target: Path, compiler: str, flags: Sequence[str], exports: str) -> None:
    """Build in a temporary directory and rename: concurrent builders never see an incomplete library."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as temporary:
        draft = Path(temporary) / "lib"
        draft.mkdir()
        script = Path(temporary) / "exports.map"
        script.write_text(exports, encoding="utf-8")
        sources = [str(path) for path in _source_files() if path.suffix == ".c"]
        command = [compiler, *flags, f"-Wl,--version-script={script}", *sources, "-o", str(draft / LIBRARY)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            output = result.stderr.strip() or f"exit code {result.returncode} without output"
            raise BuildError(f"{compiler} cannot build the stub: {output}")
        try:
            draft.rename(target)
        except OSError:
            if not (target / LIBRARY).exists():
                raise
