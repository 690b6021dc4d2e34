"""A process that plays worlds through the real nvidia-ml-py, for tests of the stub."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.nvml_stub.build import build
from tests.nvml_stub.play import StubClock, preload, stub_variables
from tests.nvml_stub.world import World, WorldGpu


@dataclass(frozen=True, slots=True)
class Stage:
    """The stub in this process, with a manual clock."""

    library: ctypes.CDLL
    clock: StubClock
    path: Path
    monkeypatch: pytest.MonkeyPatch

    def play(self, world: World) -> None:
        """Initialise NVML on this world."""
        for name, value in stub_variables(world.write(self.path), self.clock).items():
            self.monkeypatch.setenv(name, value)
        pynvml.nvmlInit()

    def calls(self, function: str) -> int:
        """The number of calls of this function since the process started."""
        return int(self.library.stub_call_count(function.encode()))


@contextmanager
def open_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A stage without a world. At the end NVML is shut down as often as it was initialised."""
    library = preload(build())
    for name in ("NVML_STUB_WORLD", "NVML_STUB_CLOCK", "NVML_STUB_CALLS"):
        monkeypatch.delenv(name, raising=False)
    with StubClock(tmp_path / "clock") as clock:
        yield Stage(library, clock, tmp_path / "world", monkeypatch)
        while library.nvmlShutdown() == pynvml.NVML_SUCCESS:
            continue


def code_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> int:
    """The NVML code a call fails with."""
    with pytest.raises(pynvml.NVMLError) as caught:
        call(*arguments, **options)
    return int(caught.value.value)


def typical() -> tuple[World, WorldGpu]:
    """A world with one idle GPU."""
    world = World()
    gpu = world.gpu()
    gpu.typical()
    return world, gpu


def handle(index: int = 0) -> Any:
    """A GPU's handle."""
    return pynvml.nvmlDeviceGetHandleByIndex(index)
