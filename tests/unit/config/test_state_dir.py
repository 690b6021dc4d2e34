"""Where counters are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpu.config.locations import StateDir, parse_state_dir

HOME = {"HOME": "/home/me"}


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "XDG_STATE_HOME": "/x", **HOME}, "/var/lib/a"),
        ({"STATE_DIRECTORY": "", "XDG_STATE_HOME": "/x", **HOME}, "/x/otel-gpu"),
        ({"XDG_STATE_HOME": "relative", **HOME}, "/home/me/.local/state/otel-gpu"),
        (HOME, "/home/me/.local/state/otel-gpu"),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_auto_is_the_units_directory_else_the_users(environment: dict[str, str], path: str | None) -> None:
    assert parse_state_dir("auto").place(environment) == (None if path is None else Path(path))


@pytest.mark.parametrize("text", ["none", "off", " none "])
def test_there_may_be_no_directory(text: str) -> None:
    assert parse_state_dir(text) == StateDir()
    assert parse_state_dir(text).place(HOME) is None


def test_a_configured_directory_takes_precedence_over_variables() -> None:
    assert parse_state_dir("/data").place({"STATE_DIRECTORY": "/other"}) == Path("/data")


@pytest.mark.parametrize("text", ["", "here", "./here", "/a\0b"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_state_dir(text)


def test_the_link_that_systemd_makes_for_a_unit_with_a_user_of_its_own_is_followed(tmp_path: Path) -> None:
    """systemd.exec(5), DynamicUser=: the directory is below private, which only root can read."""
    (tmp_path / "private/otel-gpu").mkdir(parents=True)
    (tmp_path / "otel-gpu").symlink_to("private/otel-gpu")
    place = parse_state_dir("auto").place({"STATE_DIRECTORY": str(tmp_path / "otel-gpu")})
    assert place == tmp_path.resolve() / "private/otel-gpu"
    assert parse_state_dir(str(tmp_path / "otel-gpu")).place({}) == tmp_path / "otel-gpu", "no other link is followed"
