from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_gpu.control.socket_path import ControlSocket, control_socket

AUTO = ControlSocket(auto=True)
HOST = Path("/run/otel-gpu/control.sock")


def test_the_unit_says_where_else_the_session_else_it_is_the_hosts_place() -> None:
    everything = {"RUNTIME_DIRECTORY": "/run/a:/run/b", "XDG_RUNTIME_DIR": "/run/user/5"}
    assert AUTO.for_agent(everything) == Path("/run/a/control.sock")
    assert AUTO.for_agent({"XDG_RUNTIME_DIR": "/run/user/5"}) == Path("/run/user/5/otel-gpu/control.sock")
    assert AUTO.for_agent({}) == HOST


def test_the_directory_of_a_unit_is_found_where_systemd_has_made_it(tmp_path: Path) -> None:
    private, link = tmp_path / "private/otel-gpu", tmp_path / "otel-gpu"
    private.mkdir(parents=True)
    link.symlink_to("private/otel-gpu")
    environment = {"RUNTIME_DIRECTORY": str(link), "XDG_RUNTIME_DIR": "/run/user/5"}
    assert AUTO.for_agent(environment) == private / "control.sock"
    assert AUTO.for_others(environment)[0] == link / "control.sock"
    chosen = control_socket(str(link / "c.sock"))
    assert chosen.for_agent(environment) == link / "c.sock"  # which is refused where it is opened


def test_who_asks_tries_every_place_for_its_environment_is_not_the_agents() -> None:
    assert AUTO.for_others({"XDG_RUNTIME_DIR": "/run/user/0"}) == (Path("/run/user/0/otel-gpu/control.sock"), HOST)
    assert AUTO.for_others({"RUNTIME_DIRECTORY": "/run/otel-gpu"}) == (HOST,)


@pytest.mark.parametrize("given", ["", "relative", "/" + "x" * 120])
def test_a_variable_that_is_no_place_is_passed_over(given: str) -> None:
    assert AUTO.for_others({"RUNTIME_DIRECTORY": given, "XDG_RUNTIME_DIR": given}) == (HOST,)


def test_a_path_that_is_chosen_is_the_only_one_and_none_is_none() -> None:
    chosen = control_socket("/tmp/x.sock")
    assert chosen.for_others({"RUNTIME_DIRECTORY": "/run/a"}) == (Path("/tmp/x.sock"),)
    assert control_socket("none").for_agent({"RUNTIME_DIRECTORY": "/run/a"}) is None
    assert control_socket(" auto ") == AUTO


@pytest.mark.parametrize("text", ["x.sock", "/tmp/", "/tmp/\0", "/" + "x" * 107])
def test_what_is_no_path_of_a_socket_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        control_socket(text)
