from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import pytest

from otel_gpu.config.values import (
    Address,
    absolute_path,
    address,
    choice,
    daemon,
    duration_s,
    one_of,
    optional_directory,
    optional_file,
    socket_path,
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
    "text",
    [
        "",
        "5",
        "s",
        "-5s",
        "+5s",
        "5 s",
        "5S",
        "5d",
        "1e3s",
        ".5s",
        "5.s",
        "\N{ARABIC-INDIC DIGIT FIVE}s",
        "5s5s",
        "nan",
        "infs",
        "0x5s",
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
