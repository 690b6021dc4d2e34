from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.config.values import (
    Address,
    ControlSocket,
    StateDir,
    absolute_path,
    address,
    choice,
    control_socket,
    daemon,
    duration_s,
    duration_text,
    key_values,
    key_values_text,
    one_of,
    optional_directory,
    optional_file,
    price,
    price_text,
    socket_path,
    state_dir,
    whole_number,
)


class Fruit(StrEnum):
    APPLE = "apple"
    PEAR = "pear"
    PLUM = "plum"


def refuses(parse: Callable[[str], object], text: str) -> bool:
    """Whether the parser raises ValueError, as it should for what it does not allow; anything else goes through."""
    try:
        parse(text)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5.0), ("5m", 300.0), ("1h", 3600.0), ("0.5s", 0.5), ("1.25m", 75.0), (" 5s\n", 5.0)],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert duration_s(0, 86_400)(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.0005, "0.0005s"), (0.1, "100ms"), (0.25, "250ms"), (1.0, "1s"), (1.5, "1.5s"), (59.999, "59.999s")),
        *((60.0, "1m"), (75.0, "75s"), (300.0, "5m"), (3600.0, "1h"), (5400.0, "90m"), (86_400.0, "24h")),
    ],
)
def test_the_text_of_a_duration_is_short_and_exact(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
    assert duration_s(0, 86_400)(text) == seconds


@given(st.dictionaries(st.text(min_size=1).filter(str.strip), st.text(), max_size=3))
def test_the_text_of_pairs_is_parsed_to_the_same_pairs(pairs: dict[str, str]) -> None:
    assert key_values(key_values_text(pairs)) == pairs


@given(st.floats(0, 999_999_999_999).map(lambda amount: round(amount, 12)))
def test_the_text_of_a_price_is_parsed_to_the_same_price(amount: float) -> None:
    assert price(price_text(amount)) == amount


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "s", "-5s", "+5s", "5 s", "5S", "5d", "1e3s", ".5s", "5.s", "5s5s", "nan", "infs", "0x5s"),
        "\N{ARABIC-INDIC DIGIT FIVE}s",
    ],
)
def test_an_invalid_duration_is_refused(text: str) -> None:
    assert refuses(duration_s(0, 86_400), text)


@pytest.mark.parametrize(("text", "allowed"), [("1s", True), ("60s", True), ("999ms", False), ("61s", False)])
def test_the_bounds_of_a_duration_belong_to_it(text: str, allowed: bool) -> None:
    assert refuses(duration_s(1, 60), text) is not allowed


def test_a_number_too_large_for_a_float_is_a_duration_that_is_too_long() -> None:
    assert refuses(duration_s(0, 60), "9" * 400 + "s")


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("9223372036854775807", 2**63 - 1), (" 3 ", 3)])
def test_whole_numbers_are_decimal(text: str, number: int) -> None:
    assert whole_number(0, 2**63 - 1)(text) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "1_000", "0x1", "٣", "9223372036854775808", "9" * 5000, "1 2"])
def test_an_invalid_whole_number_is_refused(text: str) -> None:
    assert refuses(whole_number(0, 2**63 - 1), text)


def test_a_choice_ignores_case_and_surrounding_space() -> None:
    assert choice(Fruit)(" PEAR ") is Fruit.PEAR


@pytest.mark.parametrize("text", ["", "pea", "pears", "apple,pear"])
def test_an_unknown_choice_is_refused(text: str) -> None:
    assert refuses(choice(Fruit), text)


def test_choices_are_listed_in_words() -> None:
    assert one_of(Fruit) == "apple, pear or plum"


def test_an_absolute_path_is_kept() -> None:
    assert absolute_path("/host/proc") == Path("/host/proc")


@pytest.mark.parametrize("text", ["", "proc", "./proc", "~/proc", "/proc\0", " /proc"])
def test_a_relative_path_is_refused(text: str) -> None:
    assert refuses(absolute_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9464", Address("127.0.0.1", 9464)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:65535", Address("::1", 65535)),
        ("[::]:80", Address("::", 80)),
        (" 0.0.0.0:1 ", Address("0.0.0.0", 1)),
    ],
)
def test_an_address_is_host_and_port_and_is_written_as_it_was_read(text: str, expected: Address) -> None:
    assert address(text) == expected
    assert address(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    ["", ":", ":80", "host", "host:", "host:x", "host:65536", "host:-1", "::1:80", "a b:80", "[]:80", "host:80:90"],
)
def test_an_invalid_address_is_refused(text: str) -> None:
    assert refuses(address, text)


def test_a_file_may_be_absolute_relative_or_empty() -> None:
    assert [optional_file(text) for text in ("/etc/web.yml", "web.yml", "", " ")] == [
        Path("/etc/web.yml"),
        Path("web.yml"),
        None,
        None,
    ]


@pytest.mark.parametrize("text", ["a\0b", "certs/", "/"], ids=ascii)
def test_an_invalid_file_is_refused(text: str) -> None:
    assert refuses(optional_file, text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("unix:///a/b.sock", "unix:///a/b.sock"),
        (" /a/b.sock ", "unix:///a/b.sock"),
        ("tcp://h:1", "tcp://h:1"),
        ("http://h/sub/", "http://h/sub"),
        ("https://[::1]:2376", "https://[::1]:2376"),
    ],
)
def test_an_engine_is_a_url_or_a_path(text: str, url: str) -> None:
    found = daemon(text)
    assert found is not None
    assert str(found) == url
    assert found.socket == (Path("/a/b.sock") if url.startswith("unix") else None)


@pytest.mark.parametrize(
    "text",
    [
        *("a", "a/b", "unix://a", "unix://", "unix:///\0", "ssh://h", "npipe:////x", "://h"),
        *("tcp://", "tcp://h:x", "tcp://h?a=b", "http://me:x@h", "https://h#x", "http://a b"),
    ],
)
def test_an_invalid_engine_is_refused(text: str) -> None:
    assert refuses(daemon, text)


@pytest.mark.parametrize("parse", [daemon, socket_path, optional_directory])
def test_an_empty_text_is_none(parse: Callable[[str], object]) -> None:
    assert parse("") is None
    assert parse("  ") is None


@pytest.mark.parametrize("text", ["/run/x.sock", "unix:///run/x.sock", " /run/x.sock\n"])
def test_a_sockets_path_may_be_a_url(text: str) -> None:
    assert socket_path(text) == Path("/run/x.sock")


@pytest.mark.parametrize("text", ["x.sock", "unix://x.sock", "tcp://h:1", "unix:/x.sock", "/a\0b"])
def test_an_invalid_socket_is_refused(text: str) -> None:
    assert refuses(socket_path, text)


def test_a_directory_may_be_relative() -> None:
    assert optional_directory("certs/") == Path("certs")
    assert refuses(optional_directory, "a\0b")


# ---------------------------------------------------------------------------- control socket


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
    chosen = control_socket(str(link / "c.sock"))
    assert chosen.agent_path(environment) == link / "c.sock"  # rejected when it is opened


def test_a_client_tries_every_path() -> None:
    assert AUTO.client_paths({"XDG_RUNTIME_DIR": "/run/user/0"}) == (Path("/run/user/0/otel-gpu/control.sock"), DEFAULT)
    assert AUTO.client_paths({"RUNTIME_DIRECTORY": "/run/otel-gpu"}) == (DEFAULT,)


@pytest.mark.parametrize("given", ["", "relative", "/" + "x" * 120])
def test_an_unusable_variable_is_ignored(given: str) -> None:
    assert AUTO.client_paths({"RUNTIME_DIRECTORY": given, "XDG_RUNTIME_DIR": given}) == (DEFAULT,)


def test_a_configured_path_is_the_only_one() -> None:
    chosen = control_socket("/tmp/x.sock")
    assert chosen.client_paths({"RUNTIME_DIRECTORY": "/run/a"}) == (Path("/tmp/x.sock"),)
    assert control_socket("none").agent_path({"RUNTIME_DIRECTORY": "/run/a"}) is None
    assert control_socket(" auto ") == AUTO


@pytest.mark.parametrize("text", ["x.sock", "/tmp/", "/tmp/\0", "/" + "x" * 107])
def test_an_invalid_path_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        control_socket(text)


# ---------------------------------------------------------------------------- state directory


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
    assert state_dir("auto").place(environment) == (None if path is None else Path(path))


@pytest.mark.parametrize("text", ["none", "off", " none "])
def test_there_may_be_no_directory(text: str) -> None:
    assert state_dir(text) == StateDir()
    assert state_dir(text).place(HOME) is None


def test_a_configured_directory_takes_precedence_over_variables() -> None:
    assert state_dir("/data").place({"STATE_DIRECTORY": "/other"}) == Path("/data")


@pytest.mark.parametrize("text", ["", "here", "./here", "/a\0b"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        state_dir(text)


def test_the_link_that_systemd_makes_for_a_unit_with_a_user_of_its_own_is_followed(tmp_path: Path) -> None:
    """systemd.exec(5), DynamicUser=: the directory is below private, which only root can read."""
    (tmp_path / "private/otel-gpu").mkdir(parents=True)
    (tmp_path / "otel-gpu").symlink_to("private/otel-gpu")
    place = state_dir("auto").place({"STATE_DIRECTORY": str(tmp_path / "otel-gpu")})
    assert place == tmp_path.resolve() / "private/otel-gpu"
    assert state_dir(str(tmp_path / "otel-gpu")).place({}) == tmp_path / "otel-gpu", "no other link is followed"
