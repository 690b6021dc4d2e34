from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_gpu.config.locations import ControlSocket, parse_control_socket

AUTO = ControlSocket(auto=True)
DEFAULT = Path("/run/otel-gpu/control.sock")


def test_the_agent_path_is_in_the_runtime_directory_else_the_session_else_the_default() -> None:
    everything = {"RUNTIME_DIRECTORY": "/run/a:/run/b", "XDG_RUNTIME_DIR": "/run/user/5"}
    assert AUTO.agent_path(everything) == Path("/run/a/control.sock")
    assert AUTO.agent_path({"XDG_RUNTIME_DIR": "/run/user/5"}) == Path("/run/user/5/otel-gpu/control.sock")
    assert AUTO.agent_path({}) == DEFAULT


def test_the_link_of_a_dynamic_user_unit_is_resolved(tmp_path: Path) -> None:
    private, link = tmp_path / "private/otel-gpu", tmp_path / "otel-gpu"
    private.mkdir(parents=True)
    link.symlink_to("private/otel-gpu")
    environment = {"RUNTIME_DIRECTORY": str(link), "XDG_RUNTIME_DIR": "/run/user/5"}
    assert AUTO.agent_path(environment) == private / "control.sock"
    assert AUTO.client_paths(environment)[0] == link / "control.sock"
    chosen = parse_control_socket(str(link / "c.sock"))
    assert chosen.agent_path(environment) == link / "c.sock"  # rejected when it is opened


def test_a_client_tries_every_path() -> None:
    assert AUTO.client_paths({"XDG_RUNTIME_DIR": "/run/user/0"}) == (Path("/run/user/0/otel-gpu/control.sock"), DEFAULT)
    assert AUTO.client_paths({"RUNTIME_DIRECTORY": "/run/otel-gpu"}) == (DEFAULT,)


@pytest.mark.parametrize("given", ["", "relative", "/" + "x" * 120])
def test_an_unusable_variable_is_ignored(given: str) -> None:
    assert AUTO.client_paths({"RUNTIME_DIRECTORY": given, "XDG_RUNTIME_DIR": given}) == (DEFAULT,)


def test_a_configured_path_is_the_only_one() -> None:
    chosen = parse_control_socket("/tmp/x.sock")
    assert chosen.client_paths({"RUNTIME_DIRECTORY": "/run/a"}) == (Path("/tmp/x.sock"),)
    assert parse_control_socket("none").agent_path({"RUNTIME_DIRECTORY": "/run/a"}) is None
    assert parse_control_socket(" auto ") == AUTO


@pytest.mark.parametrize("text", ["x.sock", "/tmp/", "/tmp/\0", "/" + "x" * 107])
def test_an_invalid_path_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        parse_control_socket(text)
