"""Setup of a process that plays a world: clock, environment variables, library."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.nvml_stub.build import LIBRARY, functions

STEPPED_EPOCH_US: Final = 1_700_000_000_000_000
"""Unix time of world time 0 with a ``StubClock``, if the world has no epoch; ``ManualClock`` starts there too."""


class StubClock:
    """World time in µs in a file that the stub reads at every call. It changes only when set."""

    def __init__(self, path: Path, now_us: int = 0) -> None:
        self.path = path
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)
        self.set_us(now_us)

    @property
    def now_us(self) -> int:
        """World time."""
        with memoryview(self._memory) as raw, raw.cast("q") as cells:
            return cells[0]

    def set_us(self, now_us: int) -> None:
        """Set world time."""
        with memoryview(self._memory) as raw, raw.cast("q") as cells:
            cells[0] = now_us

    def advance_s(self, seconds: float) -> None:
        """Advance world time."""
        self.set_us(self.now_us + round(seconds * 1e6))

    def close(self) -> None:
        """Unmap the file; a stub that has it mapped keeps the last time."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class LiveCounts:
    """Call counts of a process with ``NVML_STUB_LIVE``; all 0 before it initialises NVML."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._functions = functions()

    def calls(self) -> dict[str, int]:
        """Calls by function."""
        return dict(zip(self._functions, self._cells(), strict=False))

    def device_calls(self, gpus: int) -> int:
        """Calls for one of the first ``gpus`` GPUs or its instances."""
        return sum(self._cells()[len(self._functions) :][:gpus])

    def _cells(self) -> tuple[int, ...]:
        raw = self.path.read_bytes() if self.path.exists() else b""
        return struct.unpack(f"={len(raw) // 8}Q", raw) if raw else (0,) * len(self._functions)


def stub_env(
    lib_dir: Path,
    world: Path,
    clock: StubClock | None = None,
    *,
    calls: Path | None = None,
    live: LiveCounts | None = None,
) -> dict[str, str]:
    """The environment of a child process that plays the world."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("NVML_STUB_")}
    search = env.get("LD_LIBRARY_PATH")
    env["LD_LIBRARY_PATH"] = f"{lib_dir}:{search}" if search else str(lib_dir)
    return env | stub_variables(world, clock, calls=calls, live=live)


def stub_variables(
    world: Path, clock: StubClock | None = None, *, calls: Path | None = None, live: LiveCounts | None = None
) -> dict[str, str]:
    """The stub's own variables, for a process that has it preloaded."""
    chosen = {
        "NVML_STUB_WORLD": world,
        "NVML_STUB_CLOCK": clock.path if clock else None,
        "NVML_STUB_CALLS": calls,
        "NVML_STUB_LIVE": live.path if live else None,
    }
    return {name: str(value) for name, value in chosen.items() if value is not None}


def preload(lib_dir: Path) -> ctypes.CDLL:
    """Load the stub into this process. Every later load of ``libnvidia-ml.so.1`` by its soname returns it.

    A process keeps the first library it loads: another variant needs another process.
    """
    library = ctypes.CDLL(str(lib_dir / LIBRARY))
    if ctypes.CDLL(LIBRARY)._handle != library._handle:
        raise RuntimeError(f"another {LIBRARY} is loaded in this process already")
    library.stub_call_count.argtypes = [ctypes.c_char_p]
    library.stub_call_count.restype = ctypes.c_ulonglong
    library.stub_device_call_count.argtypes = [ctypes.c_uint]
    library.stub_device_call_count.restype = ctypes.c_ulonglong
    return library
