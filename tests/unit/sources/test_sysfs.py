from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpu.sources.sysfs import PciBus


def test_the_driver_tells_its_gpus_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    driver = tmp_path / "bus/pci/drivers/nvidia"
    driver.mkdir(parents=True)
    for name in ("0000:af:00.0", "0000:3b:00.0", "bind", "new_id", "module", "uevent"):
        (driver / name).touch()
    assert PciBus(tmp_path).gpus() == ("0000:3b:00.0", "0000:af:00.0")


def test_without_a_driver_nothing_is_told(tmp_path: Path) -> None:
    assert PciBus(tmp_path).gpus() is None


@pytest.mark.parametrize(
    ("status", "asleep"),
    [
        ("suspended\n", True),
        ("suspending\n", True),
        ("active\n", False),
        ("resuming\n", False),
        ("error\n", False),
        ("unsupported\n", False),
        ("\xff", False),
        ("", False),
    ],
)
def test_only_a_gpu_that_is_suspended_is_asleep(tmp_path: Path, status: str, asleep: bool) -> None:
    power = tmp_path / "bus/pci/devices/0000:3b:00.0/power"
    power.mkdir(parents=True)
    (power / "runtime_status").write_text(status, encoding="latin-1")
    assert PciBus(tmp_path).is_asleep("0000:3b:00.0") is asleep


@pytest.mark.parametrize("bus_id", ["", "../../..", "0000:3b:00.0/..", "0000:00:00.0"])
def test_a_gpu_that_sys_does_not_know_is_awake(tmp_path: Path, bus_id: str) -> None:
    assert PciBus(tmp_path).is_asleep(bus_id) is False
