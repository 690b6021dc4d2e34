"""The driver as the kernel shows it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from otel_gpu.sources.nvml.system import PciBus, library_was_replaced, parse_mapped_library


def test_the_gpus_of_the_driver_are_in_order_of_address(tmp_path: Path) -> None:
    driver = tmp_path / "bus/pci/drivers/nvidia"
    driver.mkdir(parents=True)
    for name in ("0000:af:00.0", "0000:3b:00.0", "bind", "new_id", "module", "uevent"):
        (driver / name).touch()
    assert PciBus(tmp_path).gpus() == ("0000:3b:00.0", "0000:af:00.0")


def test_without_a_driver_the_gpus_are_unknown(tmp_path: Path) -> None:
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
def test_only_a_suspended_gpu_is_asleep(tmp_path: Path, status: str, asleep: bool) -> None:
    power = tmp_path / "bus/pci/devices/0000:3b:00.0/power"
    power.mkdir(parents=True)
    (power / "runtime_status").write_text(status, encoding="latin-1")
    assert PciBus(tmp_path).is_asleep("0000:3b:00.0") is asleep


@pytest.mark.parametrize("bus_id", ["", "../../..", "0000:3b:00.0/..", "0000:00:00.0"])
def test_an_unknown_gpu_is_awake(tmp_path: Path, bus_id: str) -> None:
    assert PciBus(tmp_path).is_asleep(bus_id) is False


def device(root: Path, status: str) -> Path:
    """The status file of a device."""
    power = root / "bus/pci/devices/0000:3b:00.0/power"
    power.mkdir(parents=True, exist_ok=True)
    file = power / "runtime_status"
    file.write_text(status)
    return file


def test_each_read_returns_the_present_state(tmp_path: Path) -> None:
    bus = PciBus(tmp_path)
    assert not bus.is_asleep("0000:3b:00.0")  # it is added later
    for status, asleep in (("active\n", False), ("suspended\n", True), ("suspended\n", True), ("active\n", False)):
        device(tmp_path, status)
        assert bus.is_asleep("0000:3b:00.0") is asleep


def test_a_gpu_with_the_address_of_a_removed_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus, real = PciBus(tmp_path), os.pread
    file = device(tmp_path, "active\n")
    assert not bus.is_asleep("0000:3b:00.0")
    removed = file.stat().st_ino

    def pread(fd: int, length: int, offset: int) -> bytes:
        """Fail as sysfs does for a removed device."""
        if os.fstat(fd).st_ino == removed:
            raise OSError(errno.ENODEV, "No such device")
        return real(fd, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    file.rename(tmp_path / "removed")
    assert not bus.is_asleep("0000:3b:00.0")
    device(tmp_path, "suspended\n")
    assert bus.is_asleep("0000:3b:00.0")


def test_no_file_stays_open_after_close_files_or_after_the_end(tmp_path: Path) -> None:
    def open_files() -> int:
        links = list(Path("/proc/self/fd").iterdir())
        return sum(link.is_symlink() and str(tmp_path) in str(link.readlink()) for link in links)

    device(tmp_path, "suspended\n")
    bus = PciBus(tmp_path)
    assert bus.is_asleep("0000:3b:00.0")
    assert open_files() == 1
    bus.close_files()
    assert open_files() == 0
    assert bus.is_asleep("0000:3b:00.0")
    assert open_files() == 1
    del bus
    assert open_files() == 0


def test_each_listing_has_the_present_gpus(tmp_path: Path) -> None:
    driver = tmp_path / "bus/pci/drivers/nvidia"
    driver.mkdir(parents=True)
    bus = PciBus(tmp_path)
    assert bus.gpus() == ()
    (driver / "0000:3b:00.0").touch()
    assert bus.gpus() == ("0000:3b:00.0",)
    (driver / "0000:3b:00.0").rename(driver / "0000:af:00.0")
    assert bus.gpus() == ("0000:af:00.0",)
    (driver / "0000:af:00.0").unlink()
    assert bus.gpus() == ()


# ---------------------------------------------------------------------------- the loaded library


MAPS = """\
7f0000000000-7f0000001000 r--p 00000000 fe:01 131 /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000002000-7f0000003000 r-xp 00001000 fe:01 {inode} {path}
7ffc00000000-7ffc00001000 rw-p 00000000 00:00 0 [stack]
"""


def mapped(tmp_path: Path, library: Path, inode: int, suffix: str = "") -> Path:
    """A ``/proc`` whose process has this library mapped."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/maps").write_text(MAPS.format(inode=inode, path=f"{library}{suffix}"))
    return tmp_path


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A driver's library with its link."""
    path = tmp_path / "my lib/libnvidia-ml.so.570.86.15"
    path.parent.mkdir()
    path.touch()
    (path.parent / "libnvidia-ml.so.1").symlink_to(path.name)
    return path


def test_the_mapped_library_is_found_with_its_inode() -> None:
    text = MAPS.format(inode=42, path="/a b/libnvidia-ml.so.1 (deleted)")
    assert parse_mapped_library(text) == (42, Path("/a b/libnvidia-ml.so.1"))
    assert parse_mapped_library("rubbish\n\n") is None


def test_an_unchanged_library_is_not_replaced(tmp_path: Path, library: Path) -> None:
    assert not library_was_replaced(mapped(tmp_path, library, library.stat().st_ino))


def test_an_upgrade_that_removes_the_old_library_replaces_it(tmp_path: Path, library: Path) -> None:
    inode = library.stat().st_ino
    newer = library.with_name("libnvidia-ml.so.580.65.06")
    newer.touch()
    library.unlink()
    (library.parent / "libnvidia-ml.so.1").unlink()
    (library.parent / "libnvidia-ml.so.1").symlink_to(newer.name)
    assert library_was_replaced(mapped(tmp_path, library, inode, " (deleted)"))


def test_an_upgrade_that_keeps_the_old_library_replaces_it_too(tmp_path: Path, library: Path) -> None:
    newer = library.with_name("libnvidia-ml.so.580.65.06")
    newer.touch()
    (library.parent / "libnvidia-ml.so.1").unlink()
    (library.parent / "libnvidia-ml.so.1").symlink_to(newer.name)
    assert library_was_replaced(mapped(tmp_path, library, library.stat().st_ino))


def test_a_removed_library_is_not_replaced(tmp_path: Path, library: Path) -> None:
    inode = library.stat().st_ino
    library.unlink()
    assert not library_was_replaced(mapped(tmp_path, library, inode, " (deleted)"))


def test_an_unreadable_map_is_not_a_replacement(tmp_path: Path) -> None:
    assert not library_was_replaced(tmp_path)
