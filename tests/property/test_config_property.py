"""Any flags, variables and files give a configuration, or an error of one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.config import SETTINGS, load, values
from otel_gpu.config.yaml_file import parse_config, read_config_file
from otel_gpu.errors import UsageError
from tests.depth import DEPTH

T = TypeVar("T")

many = settings(max_examples=100 * DEPTH, deadline=None, derandomize=True, database=None)
some = settings(max_examples=60 * DEPTH, deadline=None, derandomize=True, database=None)

KEYS = [setting.key for setting in SETTINGS]
VARIABLES = [setting.variable for setting in SETTINGS] + [
    "HOST_PROC",
    "OTEL_EXPORTER_PROMETHEUS_HOST",
    "OTEL_EXPORTER_PROMETHEUS_PORT",
]

any_text = st.text(st.characters(exclude_categories=()), max_size=40)
near_value = st.text("0123456789.msh:[]/-+ \nabcnvlimsuto", max_size=14)
good_value = st.sampled_from(["5s", "1h", "500ms", "sim", "nvml", "7", "/proc", "[::1]:80", "a:0", "debug", "json"])
value = st.one_of(good_value, near_value, any_text)
near_yaml = st.text("ab:-?,[]{}#&*!|>'\"%@`\\ \n\tUux019F~<=./\ufeff\x85\u2028\r", max_size=40)
entry = st.tuples(st.one_of(st.sampled_from(KEYS), any_text), value).map(": ".join)
yaml_text = st.one_of(near_yaml, any_text, st.lists(entry, max_size=5).map("\n".join))


@many
@given(value)
def test_every_parser_gives_a_value_or_raises_value_error(text: str) -> None:
    for setting in SETTINGS:
        try:
            parsed = setting.type.parse(text)
        except ValueError:
            continue
        assert parsed is not None or not text.strip()  # nothing is no price and no file


@many
@given(st.floats(0, 1e7), st.sampled_from(["ms", "s", "m", "h"]))
def test_a_duration_that_is_accepted_is_within_its_bounds(number: float, unit: str) -> None:
    try:
        seconds = values.duration_s(1, 3600)(f"{number:.3f}{unit}")
    except ValueError:
        return
    assert 1 <= seconds <= 3600


@many
@given(value)
def test_an_address_that_is_accepted_reads_the_same_when_written_out(text: str) -> None:
    try:
        address = values.address(text)
    except ValueError:
        return
    assert 0 <= address.port <= 65535
    assert values.address(str(address)) == address


def outcome(call: Callable[[], T]) -> T | UsageError:
    """What the call gives, or the one complaint it may have; anything else it raises goes through."""
    try:
        return call()
    except UsageError as error:
        return error


@many
@given(yaml_text)
def test_any_text_as_a_file_gives_settings_or_an_error_that_names_the_file(text: str) -> None:
    parsed = outcome(lambda: parse_config(text, "agent.yaml"))
    if isinstance(parsed, UsageError):
        assert str(parsed).startswith("agent.yaml")
    else:
        assert all(value.origin.startswith("agent.yaml:") for value in parsed.values())


@some
@given(st.one_of(st.binary(max_size=60), yaml_text.map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_bytes_as_a_file_give_settings_or_an_error_that_names_the_file(content: bytes) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "agent.yaml"
        path.write_bytes(content)
        parsed = outcome(lambda: read_config_file(path))
    assert isinstance(parsed, dict) or str(path) in str(parsed)


@many
@given(st.dictionaries(st.sampled_from(KEYS), value), st.dictionaries(st.sampled_from(VARIABLES), value))
def test_any_flags_and_variables_give_a_configuration_or_one_line(
    flags: dict[str, str], environment: dict[str, str]
) -> None:
    loaded = outcome(lambda: load(flags, environment))
    if isinstance(loaded, UsageError):
        assert len(str(loaded).splitlines()) == 1
        assert re.search(r"; (use|did you mean) |: .+ are the same label in Prometheus", str(loaded))
    else:
        assert [value.key for value in loaded.values] == KEYS
        assert all(value.origin == f"--{value.key}" for value in loaded.values if value.key in flags)


@some
@given(any_text)
def test_any_missing_file_is_refused(name: str) -> None:
    with TemporaryDirectory() as directory:
        refused = outcome(lambda: load({"config": f"{directory}/none/{name}"}, {}))
    assert "cannot read the configuration file" in str(refused)
