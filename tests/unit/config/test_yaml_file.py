from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_gpu.config.yaml_file import FileValue, parse_config, read_config_file
from otel_gpu.errors import UsageError

EXAMPLE = "write each setting as 'key: value', for example 'otlp-endpoint: http://localhost:4318'"


def complaint(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_config(text, "agent.yaml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read_complaint(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_config_file(path)
    return str(caught.value)


def test_each_value_knows_its_line() -> None:
    text = "# settings\ninterval: 5s\n\nlisten: '127.0.0.1:9464'  # quoted\n"
    assert parse_config(text, "agent.yaml") == {
        "interval": FileValue("5s", "agent.yaml:2"),
        "listen": FileValue("127.0.0.1:9464", "agent.yaml:4"),
    }


@pytest.mark.parametrize("value", ["\n  host: a", "{otlp: x}", "\n  otlp:\n    endpoint: x"])
def test_nested_settings_are_refused_with_a_flat_key(value: str) -> None:
    assert complaint(f"seed: 1\nlisten: {value}\n") == f"agent.yaml:2: listen: settings are not nested; {EXAMPLE}"


def test_a_pipe_that_no_process_writes_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.config.yaml_file._PIPE_TIMEOUT_S", 0.01)
    os.mkfifo(pipe := tmp_path / "agent.yaml")
    assert read_complaint(pipe) == (
        f"cannot read the configuration file {pipe}: "
        "it is not a regular file, and no process has written all of it within 0.01 s"
    )


@pytest.mark.parametrize("text", ["", "\n", "# nothing but a comment\n", "---\n", "\ufeff", "{}"])
def test_a_text_without_settings_is_an_empty_mapping(text: str) -> None:
    assert parse_config(text, "agent.yaml") == {}


@pytest.mark.parametrize("written", ["on", "1e3", "0x10", "007", "null", "2001-01-01", "1_000", "~"])
def test_a_value_stays_the_text_the_user_wrote(written: str) -> None:
    assert parse_config(f"key: {written}\n", "f")["key"].text == written


def test_a_mapping_may_be_in_braces() -> None:
    assert {key: value.text for key, value in parse_config("{interval: 5s, seed: 3}", "f").items()} == {
        "interval": "5s",
        "seed": "3",
    }


def test_a_key_set_twice_is_refused_with_both_places() -> None:
    assert complaint("seed: 1\ninterval: 5s\nseed: 1\n") == ("agent.yaml:3: seed is set twice, first at agent.yaml:1")


@pytest.mark.parametrize("text", ["interval", "- interval: 5s", "5", "[a, b]"])
def test_a_file_that_is_not_a_mapping_is_refused_with_an_example(text: str) -> None:
    assert complaint(text) == f"agent.yaml: not a mapping; {EXAMPLE}"


@pytest.mark.parametrize("text", ["seed: 1\n? [a]\n: b\n", "seed: 1\n{a: b}: c\n"])
def test_a_key_that_is_not_a_word_is_refused_with_its_line(text: str) -> None:
    assert complaint(text) == f"agent.yaml:2: a key is not a single word; {EXAMPLE}"


@pytest.mark.parametrize("value", ["[a, [b]]", "[{a: b}]"])
def test_a_nested_value_is_refused_with_its_key_and_line(value: str) -> None:
    assert complaint(f"seed: 1\nlisten: {value}\n") == (
        f"agent.yaml:2: listen: the value is not a single word or a list of words; {EXAMPLE}"
    )


@pytest.mark.parametrize(("value", "text"), [("[a, b:1]", "a,b:1"), ("\n- a\n- b", "a,b"), ("[a]", "a"), ("[]", "")])
def test_a_list_equals_words_separated_by_commas(value: str, text: str) -> None:
    assert parse_config(f"compat: {value}\n", "f")["compat"].text == text


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: b: c\n", 1), ("a: 1\nb: [\n", 3), ("a: 1\n\tb: 2\n", 2), ("a: 'unclosed\n", 2), ("a: *nowhere\n", 1)],
)
def test_invalid_syntax_is_refused_with_its_line(text: str, line: int) -> None:
    assert complaint(text).startswith(f"agent.yaml:{line}: not valid YAML: ")


def test_two_documents_are_refused() -> None:
    assert complaint("a: 1\n---\nb: 2\n") == (
        "agent.yaml:2: not valid YAML: expected a single document in the stream, but found another document"
    )


@pytest.mark.parametrize(
    "text",
    [
        "a: \x00\n",
        "a: \ud800\n",
        'a: "\\UFFFFFFFF"\n',
        'a: "\\U00110000"\n',
        "%YAML " + "9" * 5000 + ".1\n---\na: 1\n",
        "[" * 20_000,
        "a: " + "{b: " * 20_000,
    ],
    ids=["nul", "surrogate", "escape too large", "escape beyond Unicode", "5,000 digits", "too deep", "too deep map"],
)
def test_an_error_of_the_yaml_library_is_one_line(text: str) -> None:
    assert complaint(text).startswith("agent.yaml")


def test_a_file_is_read_as_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("proc-root: /прок\n", encoding="utf-8")
    assert read_config_file(path) == {"proc-root": FileValue("/прок", f"{path}:1")}


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(b"proc-root: /\xff\n")
    assert read_complaint(path) == f"the configuration file {path} is not UTF-8 text"


def test_a_file_over_a_mebibyte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(b"#" * ((1 << 20) + 1))
    assert read_complaint(path) == f"the configuration file {path} is over 1 MiB; is it the right file?"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert read_complaint(tmp_path) == f"cannot read the configuration file {tmp_path}: Is a directory"


@pytest.mark.parametrize("name", ["a\0b", "\ud800"], ids=["nul", "surrogate"])
def test_an_invalid_file_name_is_refused(name: str) -> None:
    assert read_complaint(Path(name)).startswith("cannot read the configuration file ")
