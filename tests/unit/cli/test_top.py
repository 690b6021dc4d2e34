from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from otel_gpu.cli import main
from otel_gpu.config import SETTINGS

pytestmark = pytest.mark.usefixtures("own_logging", "clean_variables")


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs ``top`` in this process, whose stdout is no terminal; the one line that comes of it."""

    def run(*arguments: str) -> str:
        assert main(["top", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err.removeprefix("otel-gpu: ").rstrip("\n")

    return run


def test_without_a_terminal_the_error_names_the_alternative(complaint: Callable[..., str]) -> None:
    assert complaint() == "top needs a terminal, and standard output is not one; otel-gpu once prints the same figures"
    assert "otel-gpu once" in complaint("--url", "http://127.0.0.1:9464")


def test_a_wrong_url_is_reported_first(complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert complaint("--url", "nonsense").startswith(
        "--url: 'nonsense' is not the URL of an agent; use http://HOST:PORT"
    )
    monkeypatch.setenv("OTEL_GPU_URL", "http://me:hunter2@")
    line = complaint()
    assert line.startswith("OTEL_GPU_URL: ")
    assert "hunter2" not in line


def test_flags_of_this_host_are_refused_for_an_agent(
    complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = complaint("--url", "http://127.0.0.1:9464", "--interval", "1s")
    assert line == "--interval is for this host, but --url names a running agent, which has its own settings"
    monkeypatch.setenv("OTEL_GPU_URL", "http://127.0.0.1:9464")
    assert complaint("--source", "sim").startswith("--source is for this host, but OTEL_GPU_URL names")


def test_settings_of_this_host_do_not_matter_for_an_agent(
    complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_GPU_INTERVAL", "nonsense")
    assert "'nonsense' is not a valid duration" in complaint()
    assert "standard output" in complaint("--url", "http://127.0.0.1:9464")


def test_it_has_the_flags_of_once_and_prices_and_none_of_exporters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["top", "--help"])
    text = capsys.readouterr().out
    flags = {setting.key for setting in SETTINGS if re.search(rf"^  {setting.flag} ", text, re.MULTILINE)}
    assert {"interval", "source", "price-kwh", "scope"} <= flags
    assert not flags & {"exporters", "listen", "state-dir", "control-socket", "web-config"}
    assert "default 2s" in text
