from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_gpu import __version__
from otel_gpu.cli import main
from otel_gpu.cli.commands import COMMANDS as ALL_COMMANDS
from otel_gpu.cli.commands import Command
from otel_gpu.cli.parser import parse
from otel_gpu.config import SETTINGS, Config, SourceChoice, Topic, keys
from otel_gpu.errors import Unavailable

pytestmark = pytest.mark.usefixtures("own_logging", "clean_variables")

COMMANDS = ("run", "once", "demo", "doctor", "config")
EXPORT_KEYS = keys(Topic.EXPORT, Topic.OTLP, Topic.COMPAT)
NAMES_KEYS = keys(Topic.NAMES)


class Line:
    """What a command line came to."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def complaint(self) -> str:
        """The one line on stderr, without the name of the program; nothing went to stdout."""
        assert self.out == ""
        assert len(self.err.splitlines()) == 1
        assert self.err.startswith("otel-gpu: ")
        assert self.err.endswith("\n")
        return self.err.removeprefix("otel-gpu: ").rstrip("\n")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Line]:
    """Runs a command line in this process."""

    def line(*arguments: str) -> Line:
        code = main(list(arguments))
        return Line(code, *capsys.readouterr())

    return line


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Config, dict[str, Any]]]:
    """Commands that do nothing but note what they were called with."""
    noted: list[tuple[str, Config, dict[str, Any]]] = []

    def note(name: str) -> Callable[..., int]:
        def call(config: Config, **options: Any) -> int:
            noted.append((name, config, options))
            return 0

        return call

    for module, name in (("once", "once"), ("run", "run"), ("doctor", "doctor"), ("setup", "setup_accounting")):
        monkeypatch.setattr(f"otel_gpu.cli.{module}.{name}", note(name))
    return noted


# ---------------------------------------------------------------------------- help and version


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"otel-gpu {__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(
        re.search(rf"^    {command} ", out, re.MULTILINE)
        for command in (*COMMANDS, "top", "metrics", "setup", "pause", "resume")
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_every_flag_of_a_command_with_its_default_and_variables_of_others(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    own_defaults = {("once", "interval"): "1s", ("demo", "exporters"): "prometheus"}
    without = {("demo", key) for key in ("source", "scope", *NAMES_KEYS)}
    without |= {
        ("once", key)
        for key in (
            "listen",
            "web-config",
            "allowed-hosts",
            "retention",
            "price-gpu-hour",
            "price-kwh",
            "currency",
            *EXPORT_KEYS,
        )
    }
    without |= {(command, key) for command in ("once", "demo") for key in ("control-socket", "state-dir")}
    for setting in SETTINGS:
        value = f"[{setting.type.metavar}]" if setting.is_switch else setting.type.metavar
        if (command, setting.key) in without:
            assert f" {setting.flag} {value}" not in out
        else:
            default = own_defaults.get((command, setting.key), setting.default) or setting.when_empty or "none"
            others = f"; also {', '.join(setting.variables[1:])})" if setting.variables[1:] else ")"
            line = f"{setting.flag} {value} {setting.help} (default {default}{others}"
            assert line in out


def test_without_a_command_the_help_is_printed(run: Callable[..., Line], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    help_ = capsys.readouterr().out
    assert (run().code, run().out, run().err) == (0, help_, "")


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_help_groups_flags_by_topic_and_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    out = capsys.readouterr().out
    settings = [setting for setting in SETTINGS if setting.key in ALL_COMMANDS[command].settings]
    headings = ["Flags", *dict.fromkeys(setting.topic.value for setting in settings)]
    assert re.findall(r"^(\S[^:\n]+):$", out, re.MULTILINE) == headings
    assert f"\nExample: {ALL_COMMANDS[command].example}\n" in out


@pytest.mark.parametrize("command", ALL_COMMANDS.values(), ids=lambda command: command.name)
def test_the_example_of_a_command_is_valid(command: Command) -> None:
    words = command.example.removeprefix("sudo ").split()
    assert words[:2] == ["otel-gpu", command.name]
    assert parse(words[1:]).command == command.name


# ---------------------------------------------------------------------------- misuse: one line, exit 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["onec"], "there is no command 'onec'; did you mean once?"),
        (["frobnicate"], "there is no command 'frobnicate'; use one of config, demo, doctor, metrics, once, pause,"),
        (["pause", "--for", "soon"], "--for: 'soon' is not a valid duration; use 1s to 168h, for example 10m"),
        (["pause", "--fro", "1m"], "pause does not know '--fro'; use one of --config, --control-socket, --for, --help"),
        (["--for", "1m", "pause"], "flags come after the command: otel-gpu pause --for 1m"),
        (["resume", "--control-socket", "x"], "--control-socket: 'x' is not a valid path; use auto, none, or an"),
        (["setup", "acounting"], "setup does not know 'acounting'; did you mean accounting?"),
        (["setup", "accounting", "GPU-0"], "setup does not know 'GPU-0'; setup takes one WHAT, and flags"),
        (["setup", "accounting", "--of"], "setup does not know '--of'; did you mean --off?"),
        (["setup", "--off"], "--off needs what to switch off: otel-gpu setup accounting --off"),
        (["--off", "setup", "accounting"], "flags come after the command: otel-gpu setup --off accounting"),
        (["setup", "accounting", "--listen", "x"], "setup does not know '--listen'; it is a flag of run, demo, doctor"),
        (["resume", "--for", "1m"], "resume does not know '--for'; it is a flag of pause"),
        (["once", "--intervall=5s"], "once does not know '--intervall=5s'; did you mean --interval?"),
        (["--verison"], "there is no flag '--verison'; did you mean --version?"),
        (["--foo"], "there is no flag '--foo'; use one of --help, --version"),
        (["once", "GPU-0"], "once does not know 'GPU-0'; once takes flags only"),
        (["once", "--format", "xml"], "--format: 'xml' is not a valid value; use table, json, prometheus or otlp"),
        (["once", "--interval"], "--interval needs a DURATION; see otel-gpu once --help"),
        (["once", "--source"], "--source needs one of nvml|sim|auto; see otel-gpu once --help"),
        (["pause", "--for"], "--for needs a DURATION; see otel-gpu pause --help"),
        (["run", "--view=yes"], "--view takes no value; use --view"),
        (["run", "--help=yes"], "--help takes no value; use --help"),
        (["--version=3"], "--version takes no value; use --version"),
        (["run", "--foo"], "run does not know '--foo'; see otel-gpu run --help"),
        (["run", "--nope"], "run does not know '--nope'; see otel-gpu run --help"),
        (["run", "-x"], "run does not know '-x'; see otel-gpu run --help"),
        (["run", "--otlp-endpiont=x"], "run does not know '--otlp-endpiont=x'; did you mean --otlp-endpoint?"),
        (["top", "--gpu"], "top does not know '--gpu'; see otel-gpu top --help"),
        (["pause", "--gpu"], "pause does not know '--gpu'; use one of --config, --control-socket, --for, --help"),
        (["once", "--interval", "5"], "--interval: '5' is not a valid duration; use 1s to 1h, for example 5s"),
        (["run", "--source", "gpu"], "--source: 'gpu' is not a valid value; use nvml, sim or auto"),
        (["once", "--source="], "--source: '' is not a valid value; use nvml, sim or auto"),
        (["--config", "x", "run"], "flags come after the command: otel-gpu run --config x"),
        (["--config=a b", "--view", "demo"], "flags come after the command: otel-gpu demo '--config=a b' --view"),
        (["--interval", "5s"], "flags come after the command: otel-gpu COMMAND --interval 5s"),
        (["demo", "--source", "nvml"], "--source: 'nvml' is not possible; demo always uses 'sim'"),
        (["demo", "--source=auto"], "--source: 'auto' is not possible; demo always uses 'sim'"),
        (["demo", "--source", "gpu"], "--source: 'gpu' is not a valid value; use nvml, sim or auto"),
        (["once", "--int", "5s"], "once does not know '--int'; "),  # abbreviations would break when flags are added
        (["doctor", "--source", "sim"], "doctor checks this host; a simulated host (--source sim) has nothing to"),
        (["once", "--config", "/nowhere/x"], "cannot read the configuration file /nowhere/x: No such file or dir"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_one_line_with_a_hint_and_exit_2(
    run: Callable[..., Line], arguments: list[str], complaint: str
) -> None:
    line = run(*arguments)
    assert line.code == 2
    assert line.complaint.startswith(complaint)


def test_an_invalid_variable_and_an_invalid_file_are_bad_usage(
    run: Callable[..., Line], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("seed: one\n", encoding="utf-8")
    from_file = run("doctor", "--config", str(path))
    monkeypatch.setenv("OTEL_GPU_LOG_LEVEL", "loud")
    from_variable = run("doctor")
    assert (from_file.code, from_variable.code) == (2, 2)
    assert from_file.complaint.startswith(f"{path}:1: seed: 'one' is not a valid whole number; use 0 to ")
    assert from_variable.complaint.startswith("OTEL_GPU_LOG_LEVEL: 'loud' is not a valid value; use debug, info")


@pytest.mark.parametrize("word", ["\x1b[31mred", "a\nb", "\u202e", "\ud800"], ids=ascii)
def test_an_error_quotes_no_control_characters(run: Callable[..., Line], word: str) -> None:
    for arguments in ([word], ["once", f"--{word}"], ["once", "--source", word], ["once", "--config", word]):
        line = run(*arguments)
        assert line.code == 2
        assert line.complaint.isprintable()


JSON_FLAG = ("--log-format", "json")


@pytest.fixture
def json_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration file, ``json.yaml``, with that choice."""
    monkeypatch.chdir(tmp_path)
    Path("json.yaml").write_text("log-format: json\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "variable", "msg"),
    [
        (["run", "--interval", "x", *JSON_FLAG], "", "--interval: 'x' is not a valid duration; "),
        (["run", "--interval", "x", "--log-format=JSON"], "logfmt", "--interval: 'x' is not a valid duration; "),
        (["run", *JSON_FLAG, "--config", "/nonexistent"], "", "cannot read the configuration file /nonexistent: "),
        (["run", "--interval", "x"], "json", "--interval: 'x' is not a valid duration; "),
        (["run", *JSON_FLAG, "--bogus"], "", "run does not know '--bogus'; "),
        (["run", "--interval", *JSON_FLAG], "", "--interval needs a DURATION; "),
        (["run", "--log-format", "jsn"], "json", "--log-format: 'jsn' is not a valid value; "),
        (["run", "--interval", "x", "--config=json.yaml"], "", "--interval: 'x' is not a valid duration; "),
        (["run", "--bogus", "--config", "json.yaml"], "", "run does not know '--bogus'; "),
        (["demo", "--source", "nvml", *JSON_FLAG], "", "--source: 'nvml' is not possible; "),
        (["config", "--exporters", "x", *JSON_FLAG], "", "--exporters: 'x' is not a valid list; "),
        ([*JSON_FLAG, "--bogus"], "", "flags come after the command: "),
        (["onec"], "json", "there is no command 'onec'; "),
    ],
)
@pytest.mark.usefixtures("json_file")
def test_with_json_chosen_bad_usage_is_a_log_record(
    run: Callable[..., Line], arguments: list[str], variable: str, msg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")  # so that it is as it was afterwards
    monkeypatch.setenv("OTEL_GPU_LOG_FORMAT", variable)
    line = run(*arguments)
    record = json.loads(line.err)
    assert (line.code, record["level"], line.err.count("\n")) == (2, "error", 1)
    assert record["msg"].startswith(msg)


@pytest.mark.parametrize("arguments", [["pause", "--for", "soon"], ["metrics", "--bogus"]])
def test_bad_usage_of_a_command_without_a_log_is_text(
    run: Callable[..., Line], arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_GPU_LOG_FORMAT", "json")
    assert run(*arguments).complaint


def test_a_pipe_as_configuration_file_is_read_only_once(run: Callable[..., Line], tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "otel-gpu.yaml")
    assert run("run", "--bogus", "--config", str(pipe)).complaint.startswith("run does not know '--bogus'; ")


# ---------------------------------------------------------------------------- what commands are called with


def test_once_has_an_interval_of_its_own(run: Callable[..., Line], settled: list[Any]) -> None:
    assert run("once").code == 0
    assert run("once", "--interval", "3s", "--format", "json").code == 0
    (_, first, as_table), (_, second, as_json) = settled
    assert (first.sampling.interval_s, as_table) == (1.0, {"form": "table"})
    assert (second.sampling.interval_s, as_json) == (3.0, {"form": "json"})


def test_the_demo_is_the_agent_on_a_simulated_host_with_the_view(run: Callable[..., Line], settled: list[Any]) -> None:
    run("demo")
    run("run")
    run("run", "--view", "--source=auto")
    assert [(name, config.sampling.source, options) for name, config, options in settled] == [
        ("run", SourceChoice.SIM, {"view": True, "demo": True}),
        ("run", SourceChoice.NVML, {"view": False}),
        ("run", SourceChoice.AUTO, {"view": True}),
    ]


def test_the_demo_is_a_simulation_whatever_variables_and_files_say(
    run: Callable[..., Line], settled: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("source: nvml\nseed: 5\n", encoding="utf-8")
    run("demo", "--config", str(path))
    run("demo", "--source", "SIM")
    monkeypatch.setenv("OTEL_GPU_SOURCE", "nvml")
    run("demo")
    assert [(config.sampling.source, config.sampling.seed) for _, config, _ in settled] == [
        (SourceChoice.SIM, 5),
        (SourceChoice.SIM, 1),
        (SourceChoice.SIM, 1),
    ]


def test_setup_alone_lists_what_can_be_set_up(
    run: Callable[..., Line], settled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_GPU_DEADLINE", "soon")
    line = run("setup")
    assert (line.code, line.err, settled) == (0, "", [])
    assert [row.split()[0] for row in line.out.splitlines()] == ["accounting"]
    assert "otel-gpu setup accounting [--off]" in line.out


def test_setup_accounting_has_a_long_deadline_and_ignores_settings_of_other_commands(
    run: Callable[..., Line], settled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@host")
    monkeypatch.setenv("OTEL_GPU_INTERVAL", "often")
    assert run("setup", "accounting").code == 0
    assert run("setup", "--off", "accounting", "--deadline", "5s").code == 0
    assert [(name, config.sampling.deadline_s, options) for name, config, options in settled] == [
        ("setup_accounting", 30.0, {"off": False}),
        ("setup_accounting", 5.0, {"off": True}),
    ]


def test_config_prints_each_value_with_its_origin(run: Callable[..., Line], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_GPU_SEED", "7")
    monkeypatch.setenv("OTEL_GPU_SEDE", "8")
    monkeypatch.setenv("OTEL_GPU_ZZZ", "9")
    line = run("config", "--listen", "[::1]:80")
    assert (line.code, line.err) == (0, "")
    rows = [row.split(maxsplit=2) for row in line.out.splitlines()]
    assert [row[0] for row in rows[:-2]] == [setting.key for setting in SETTINGS]
    assert ["seed", "7", "OTEL_GPU_SEED"] in rows
    assert ["listen", "[::1]:80", "--listen"] in rows
    assert ["interval", "5s", "default"] in rows
    hint = "did you mean OTEL_GPU_SEED?"
    assert line.out.splitlines()[-2:] == [
        f"OTEL_GPU_SEDE is set but is not a setting; it is ignored; {hint}",
        "OTEL_GPU_ZZZ is set but is not a setting; it is ignored",
    ]


@pytest.mark.parametrize(
    ("arguments", "variables", "row"),
    [
        ([], {}, ("otlp-endpoint", "http://localhost:4318/v1/metrics", "default")),
        (["--otlp-protocol", "grpc"], {}, ("otlp-endpoint", "http://localhost:4317", "default")),
        (["--otlp-endpoint", "http://h:1"], {}, ("otlp-endpoint", "http://h:1/v1/metrics", "--otlp-endpoint")),
        (
            [],
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c/foo"},
            ("otlp-endpoint", "http://c/foo/v1/metrics", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ),
        (
            [],
            {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c/foo?key=secret"},
            ("otlp-endpoint", "http://c/foo?…", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"),
        ),
        (
            ["--otlp-protocol", "grpc", "--otlp-endpoint", "c:4317", "--otlp-insecure"],
            {},
            ("otlp-endpoint", "http://c:4317", "--otlp-endpoint"),
        ),
        ([], {}, ("otlp-insecure", "true", "otlp-endpoint")),
        (["--otlp-endpoint", "https://c"], {}, ("otlp-insecure", "false", "otlp-endpoint")),
        (["--otlp-insecure"], {}, ("otlp-insecure", "true", "--otlp-insecure")),
        ([], {"OTEL_EXPORTER_OTLP_INSECURE": "false"}, ("otlp-insecure", "true", "otlp-endpoint")),
        ([], {"DOCKER_TLS_VERIFY": "0"}, ("docker-tls-verify", "on", "DOCKER_TLS_VERIFY")),
        ([], {"OTEL_METRIC_EXPORT_INTERVAL": "5000"}, ("export-interval", "5s", "OTEL_METRIC_EXPORT_INTERVAL")),
        (["--export-interval", "3m"], {}, ("retention", "6m", "default, raised for export-interval")),
        (["--otlp-headers", "API-Key=secret"], {}, ("otlp-headers", "api-key=…", "--otlp-headers")),
        (["--price-gpu-hour", "A100=2.50, H100=4"], {}, ("price-gpu-hour", "A100=2.5,H100=4", "--price-gpu-hour")),
        (["--log-format", "JSON"], {}, ("log-format", "json", "--log-format")),
        ([], {"STATE_DIRECTORY": "/nonexistent/state"}, ("state-dir", "/nonexistent/state", "default (auto)")),
        (["--state-dir", "none"], {}, ("state-dir", "none", "--state-dir")),
        (
            ["--control-socket", "auto"],
            {"RUNTIME_DIRECTORY": "/nonexistent/run"},
            ("control-socket", "/nonexistent/run/control.sock", "--control-socket (auto)"),
        ),
        ([], {}, ("service-name", "otel-gpu", "default")),
        ([], {"OTEL_RESOURCE_ATTRIBUTES": "service.name=a"}, ("service-name", "a", "resource-attributes")),
        ([], {}, ("docker-cert-path", "~/.docker", "default")),
        ([], {}, ("price-kwh", "none", "default")),
        ([], {}, ("pod-resources-socket", "the kubelet's socket: standard, k0s or MicroK8s", "default")),
        (["--environment", "host"], {}, ("docker-host", "not used", "environment")),
        (["--environment", "docker"], {}, ("docker-host", "unix:///var/run/docker.sock", "default")),
        (["--environment", "docker"], {"CONTAINER_HOST": "/p.sock"}, ("podman-host", "not used", "environment")),
        (["--environment", "slurm"], {}, ("cri-socket", "not used", "environment")),
        (["--environment", "kubernetes", "--cri-socket", "/c.sock"], {}, ("cri-socket", "/c.sock", "--cri-socket")),
    ],
)
def test_config_shows_the_value_in_force(
    run: Callable[..., Line],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variables: dict[str, str],
    row: tuple[str, str, str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    line = run("config", *arguments)
    assert line.code == 0
    assert list(row) in [re.split(r" {2,}", each) for each in line.out.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "complaint", "shown"),
    [
        (["--seed", "one"], "--seed: 'one' is not a valid whole number; use ", ["seed", "one", "--seed  <- not valid"]),
        (["--seed", "one", "--prometheus"], "--seed: 'one' is not ", ["prometheus", "on", "--prometheus"]),
        (
            ["--retention", "5s"],
            "--retention: '5s' is too short; use ",
            ["retention", "5s", "--retention  <- not valid"],
        ),
        (
            ["--compat", "my-gpu-exporter", "--my-gpu-exporter-flags=--x=1"],
            "--my-gpu-exporter-flags: my-gpu-exporter has no flag --x; use --",
            ["my-gpu-exporter-flags", "--x=1", "--my-gpu-exporter-flags  <- not valid"],
        ),
        (["--config", "/nowhere/x"], "cannot read the configuration file /nowhere/x", ["seed", "1", "default"]),
    ],
)
def test_config_prints_values_before_the_error(
    run: Callable[..., Line], arguments: list[str], complaint: str, shown: list[str]
) -> None:
    line = run("config", *arguments)
    assert line.code == 2
    rows = [row.split(maxsplit=2) for row in line.out.splitlines()]
    assert [row[0] for row in rows] == [setting.key for setting in SETTINGS]
    assert shown in rows
    marked = [row for row in rows if row[2].endswith("<- not valid")]
    assert len(marked) == (0 if "--config" in arguments else 1)
    assert Line(line.code, "", line.err).complaint.startswith(complaint)


def test_config_prints_known_keys_of_a_file_with_an_unknown_key(run: Callable[..., Line], tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("sede: 1\ninterval: 7s\n", encoding="utf-8")
    line = run("config", "--config", str(path))
    assert ["interval", "7s", f"{path}:2"] in [row.split(maxsplit=2) for row in line.out.splitlines()]
    assert (line.code, line.err) == (2, f"otel-gpu: {path}:1: there is no setting 'sede'; did you mean seed?\n")


# ---------------------------------------------------------------------------- failures: one line, exit 1


def raising(error: BaseException) -> Callable[..., int]:
    def command(*_: Any, **__: Any) -> int:
        raise error

    return command


def test_a_failure_is_one_line_and_exit_1(run: Callable[..., Line], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.cli.once.once", raising(Unavailable("NVML: no driver")))
    line = run("once")
    assert (line.code, line.complaint) == (1, "NVML: no driver")


def test_an_internal_error_is_one_line_without_a_traceback(
    run: Callable[..., Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_gpu.cli.once.once", raising(RuntimeError("two\nlines \x1b[31m")))
    line = run("once")
    assert line.code == 1
    assert line.complaint == (
        "internal error: RuntimeError: two lines \N{REPLACEMENT CHARACTER}[31m; "
        "this is a bug, --log-level debug shows where"
    )


def test_an_internal_error_before_setup_is_one_line(run: Callable[..., Line], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.cli.commands.resolve", raising(KeyError("oops")))
    line = run("once")
    assert line.code == 1
    assert line.complaint.startswith("internal error: KeyError: 'oops'; ")


def test_at_debug_level_an_internal_error_logs_its_traceback(
    run: Callable[..., Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_gpu.cli.once.once", raising(RuntimeError("boom")))
    logged, complaint = run("once", "--log-level", "debug").err.splitlines()
    assert 'msg="internal error"' in logged
    assert "test_parser.py" in logged
    assert complaint.startswith("otel-gpu: internal error: RuntimeError: boom; ")


def test_an_interrupt_is_silent_and_has_the_shells_exit_code(
    run: Callable[..., Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_gpu.cli.once.once", raising(KeyboardInterrupt()))
    line = run("once")
    assert (line.code, line.out, line.err) == (130, "", "")


def test_the_demo_ignores_addresses_of_container_engines(
    settled: list[tuple[str, Config, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@host")
    assert main(["demo"]) == 0
    assert settled[-1][1].names.docker.host is None
    assert main(["run"]) == 2
