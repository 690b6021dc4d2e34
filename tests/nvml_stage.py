"""A stage that plays a world to the NVML source in this process, with one clock for both."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.sources.nvml import NvmlSource
from tests.nvml_stub.world import STEPPED_EPOCH_US, StubClock, World, preload, stub_variables


class FakeBus:
    """A fake ``/sys`` with GPUs at the PCI addresses of a world; empty until ``set_gpus``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def set_gpus(self, count: int) -> None:
        """Set the number of GPUs of the driver."""
        driver = self.root / "bus/pci/drivers/nvidia"
        driver.mkdir(parents=True, exist_ok=True)
        for index in range(8):
            link = driver / self._bus_id(index)
            link.unlink(missing_ok=True)
            if index < count:
                link.symlink_to(self.root / "bus/pci/devices" / link.name)

    def set_status(self, index: int, status: str) -> None:
        """Set the GPU's runtime power management status: active, suspended."""
        power = self.root / "bus/pci/devices" / self._bus_id(index) / "power"
        power.mkdir(parents=True, exist_ok=True)
        (power / "runtime_status").write_text(f"{status}\n")

    @staticmethod
    def _bus_id(index: int) -> str:
        return f"0000:{0x10 + index:02x}:00.0"


END_US = 1 << 59
"""World time at which a stage ends; a hang must end before it."""


class Stage:
    """Holds the stub, a world file, the stepped clock and the sources opened on them."""

    def __init__(self, stub_dir: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._library = preload(stub_dir)
        self._path = directory / "world.txt"
        self._stub_clock = StubClock(directory / "clock")
        self._monkeypatch = monkeypatch
        self._sources: list[NvmlSource] = []
        self.clock = ManualClock(wall_ns=STEPPED_EPOCH_US * 1000)
        self.bus = FakeBus(directory / "sys")

    def play(self, world: World, *, deadline_s: float = 30.0, init_deadline_s: float = 30.0) -> NvmlSource:
        """A source on this world. Only tests of deadlines shorten them."""
        self.put(world)
        source = NvmlSource(
            self.clock,
            deadline_s=deadline_s,
            init_deadline_s=init_deadline_s,
            event_wait_ms=10,
            sys_root=self.bus.root,
        )
        self._sources.append(source)
        return source

    def put(self, world: World) -> None:
        """Replace the world: it is read at the next initialisation after a shutdown."""
        for name, value in stub_variables(world.write(self._path), self._stub_clock).items():
            self._monkeypatch.setenv(name, value)

    def device_calls(self, gpu: int) -> int:
        """The number of calls for this GPU index in this process."""
        return int(self._library.stub_device_call_count(gpu))

    def advance(self, seconds: float) -> None:
        """Advance the clocks of the agent and the driver."""
        self.clock.advance(seconds)
        self._stub_clock.advance_s(seconds)

    def calls(self, function: str) -> int:
        """The number of calls of this NVML function in this process."""
        return int(self._library.stub_call_count(function.encode()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stub_clock.set_us(END_US)  # past the end of every hang, so that no thread is left in one
        for source in self._sources:
            source.close()
        # A source that was closed while a call hung has not shut NVML down, which the next test needs.
        for _ in range(100):
            if self._library.nvmlShutdown() != 0:
                break
        self._stub_clock.close()
