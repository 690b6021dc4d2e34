from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpu.sources.nvml.library import parse_mapped_library, was_replaced

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
    assert not was_replaced(mapped(tmp_path, library, library.stat().st_ino))


def test_an_upgrade_that_removes_the_old_library_replaces_it(tmp_path: Path, library: Path) -> None:
    inode = library.stat().st_ino
    newer = library.with_name("libnvidia-ml.so.580.65.06")
    newer.touch()
    library.unlink()
    (library.parent / "libnvidia-ml.so.1").unlink()
    (library.parent / "libnvidia-ml.so.1").symlink_to(newer.name)
    assert was_replaced(mapped(tmp_path, library, inode, " (deleted)"))


def test_an_upgrade_that_keeps_the_old_library_replaces_it_too(tmp_path: Path, library: Path) -> None:
    newer = library.with_name("libnvidia-ml.so.580.65.06")
    newer.touch()
    (library.parent / "libnvidia-ml.so.1").unlink()
    (library.parent / "libnvidia-ml.so.1").symlink_to(newer.name)
    assert was_replaced(mapped(tmp_path, library, library.stat().st_ino))


def test_a_removed_library_is_not_replaced(tmp_path: Path, library: Path) -> None:
    inode = library.stat().st_ino
    library.unlink()
    assert not was_replaced(mapped(tmp_path, library, inode, " (deleted)"))


def test_an_unreadable_map_is_not_a_replacement(tmp_path: Path) -> None:
    assert not was_replaced(tmp_path)
