from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast, get_type_hints

import pytest

from otel_gpu.attribution.options import EnergyModel, EnergyPolicy
from otel_gpu.config import (
    BY_KEY,
    SETTINGS,
    Config,
    Loaded,
    LogFormat,
    LogLevel,
    Scope,
    SourceChoice,
    Value,
    load,
    nearest,
)
from otel_gpu.config.groups import (
    AttributionConfig,
    CompatConfig,
    Compression,
    DockerConfig,
    Environment,
    ExportConfig,
    Exporter,
    KubernetesApi,
    LogConfig,
    NamesConfig,
    OtlpConfig,
    Protocol,
    SamplingConfig,
    StateConfig,
    Temporality,
    WebConfig,
)
from otel_gpu.config.values import Address, ControlSocket, StateDir
from otel_gpu.errors import UsageError

FLAGS = "list of flags"
VALUES = {
    "interval": ("7s", "8s", "9s", "999ms", "duration"),
    "deadline": ("3s", "4s", "5s", "2", "duration"),
    "source": ("sim", "auto", "sim", "cuda", "value"),
    "seed": ("2", "3", "4", "-1", "whole number"),
    "proc-root": ("/a", "/b", "/c", "proc", "path"),
    "sys-root": ("/a", "/b", "/c", "sys", "path"),
    "scope": ("pod", "node", "pod", "cluster", "value"),
    "retention": ("6m", "7m", "8m", "0s", "duration"),
    "energy-policy": ("sm", "memory", "none", "fair", "value"),
    "energy-model": ("sm", "learned", "sm", "magic", "value"),
    "price-gpu-hour": ("1", "A100=2", "A100=2,H100=3", "A100=", "price"),
    "price-kwh": ("0.1", "0.2", "0.3", "-1", "price"),
    "currency": ("EUR", "CHF", "SEK", "euro", "currency"),
    "listen": ("a:1", "b:2", "c:3", "9464", "address"),
    "web-config": ("a.yml", "/b.yml", "c/d.yml", "certs/", "file"),
    "allowed-hosts": ("a.example", "b,[::1]", "*", "a b", "list"),
    "control-socket": ("/a.sock", "none", "/c.sock", "off", "path"),
    "state-dir": ("/a", "none", "/c", "here", "path"),
    "log-level": ("debug", "warning", "error", "loud", "value"),
    "log-format": ("json", "json", "json", "xml", "value"),
    "environment": ("docker", "slurm", "host", "cloud", "value"),
    "docker-host": ("unix:///a.sock", "tcp://b:2375", "https://c:2376", "ssh://a", "URL"),
    "docker-tls-verify": ("on", "true", "on", "maybe", "value"),
    "docker-cert-path": ("a", "/b", "c/", "", ""),
    "podman-host": ("/a.sock", "unix:///b.sock", "http://c:1", "a.sock", "URL"),
    "cri-socket": ("/a.sock", "unix:///b.sock", "/c.sock", "tcp://a:1", "socket"),
    "pod-resources-socket": ("/a.sock", "unix:///b.sock", "/c.sock", "a.sock", "socket"),
    "kubernetes-api": ("always", "never", "always", "sometimes", "value"),
    "node-name": ("a", "b", "c", "", ""),
    "container-labels": ("a", "a,b", "c", "a b", "list"),
    "pod-labels": ("app", "app.kubernetes.io/name", "team", "a b", "list"),
    "exporters": ("console", "prometheus", "none", "none,otlp", "list"),
    "prometheus": ("on", "true", "on", "maybe", "value"),
    "export-interval": ("16s", "17s", "18s", "99ms", "duration"),
    "export-timeout": ("31s", "32s", "33s", "2h", "duration"),
    "otlp-protocol": ("grpc", "grpc", "grpc", "http/json", "value"),
    "otlp-endpoint": ("http://a", "http://b:1", "https://c/d", "ftp://a", "endpoint"),
    "otlp-headers": ("a=1", "b=2", "c=3", "…", "list"),
    "otlp-timeout": ("11s", "12s", "13s", "0s", "duration"),
    "otlp-compression": ("gzip", "gzip", "gzip", "zstd", "value"),
    "otlp-certificate": ("a.pem", "/b.pem", "c/d.pem", "certs/", "file"),
    "otlp-client-key": ("a.key", "/b.key", "c/d.key", "certs/", "file"),
    "otlp-client-certificate": ("a.crt", "/b.crt", "c/d.crt", "certs/", "file"),
    "otlp-insecure": ("true", "false", "true", "perhaps", "value"),
    "otlp-temporality": ("delta", "lowmemory", "delta", "monthly", "value"),
    "resource-attributes": ("a=b", "c=d", "e=f,g=h", "a", "list"),
    "service-name": ("a", "b", "c", "", ""),
    "process-metrics": ("off", "false", "off", "2", "value"),
    "openmetrics-created": ("on", "true", "on", "2", "value"),
    "compat": ("gpu-inference:1", "gpu-inference:2,dcgm-exporter:3", "my-gpu-exporter:4", "gpu-inference:0", "list"),
    "my-gpu-exporter-flags": ("--log-level=info", "--metric-prefix=a", "--metrics-path=/m", "metric-prefix", FLAGS),
}  # fmt: skip
"""For each setting: values for the file, the environment and a flag, and an invalid value with its noun."""


def value_of(loaded: Loaded, key: str) -> Value:
    return next(value for value in loaded.values if value.key == key)


def complaint(flags: Mapping[str, str], environment: Mapping[str, str]) -> str:
    with pytest.raises(UsageError) as caught:
        load(flags, environment)
    return str(caught.value)


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---------------------------------------------------------------------------- where values come from


def test_the_defaults() -> None:
    loaded = load({}, {})
    otlp = OtlpConfig(
        Protocol.HTTP, None, {}, 10.0, Compression.NONE, None, None, None, None, Temporality.CUMULATIVE
    )  # fmt: skip
    docker = DockerConfig(host=None, tls_verify=False, cert_path=None)
    assert loaded.config == Config(
        SamplingConfig(5.0, 2.0, SourceChoice.NVML, 1, Path("/proc"), Path("/sys"), Scope.NODE),
        AttributionConfig(300.0, EnergyPolicy.RESIDENT, EnergyModel.LEARNED, {}, None, "USD"),
        NamesConfig(Environment.AUTO, docker, None, None, None, KubernetesApi.AUTO, "", (), ()),
        ExportConfig((Exporter.OTLP,), False, 15.0, 30.0, True, False, {}, "", otlp),
        WebConfig(Address("127.0.0.1", 9464), None, ()),
        CompatConfig((), {}),
        StateConfig(StateDir(auto=True), ControlSocket(auto=True)),
        LogConfig(LogLevel.INFO, LogFormat.LOGFMT),
    )
    assert {value.origin for value in loaded.values} == {"default"}
    assert loaded.unknown_variables == ()


def dotted_fields(group: type[Any], prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(group)
    for field in fields(group):
        if is_dataclass(hints[field.name]) and field.name not in ("listen", "directory", "control_socket"):
            yield from dotted_fields(cast("type[Any]", hints[field.name]), f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def test_every_field_of_the_configuration_has_a_setting_and_every_setting_a_field() -> None:
    assert sorted(setting.field for setting in SETTINGS) == sorted(dotted_fields(Config))
    assert set(VALUES) == {setting.key for setting in SETTINGS}


def test_the_field_of_a_setting_ends_with_its_unit() -> None:
    assert all(setting.field.endswith(f"_{setting.type.unit}") for setting in SETTINGS if setting.type.unit)


@pytest.mark.parametrize("key", VALUES)
def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(key: str, tmp_path: Path) -> None:
    setting = next(setting for setting in SETTINGS if setting.key == key)
    in_file, in_environment, in_flag, *_ = VALUES[key]
    path = written(tmp_path / "agent.yaml", f"# a comment\n{key}: {in_file}\n")

    from_default = value_of(load({}, {}), key)
    from_file = value_of(load({"config": path}, {}), key)
    from_environment = value_of(load({"config": path}, {setting.variable: in_environment}), key)
    from_flag = value_of(load({"config": path, key: in_flag}, {setting.variable: in_environment}), key)

    assert from_default == Value(key, setting.default, "default")
    assert from_file == Value(key, setting.shown(in_file), f"{path}:2")
    assert from_environment == Value(key, setting.shown(in_environment), setting.variable)
    assert from_flag == Value(key, setting.shown(in_flag), f"--{key}")


@pytest.mark.parametrize("key", VALUES)
def test_the_text_of_a_parsed_value_is_parsed_to_the_same_value(key: str) -> None:
    setting = BY_KEY[key]
    *texts, _, _ = VALUES[key]
    for text in (*texts, setting.default):
        parsed = setting.type.parse(text)
        if parsed is not None:
            assert setting.type.parse(setting.type.text(parsed)) == parsed


def test_values_are_parsed_into_the_configuration(tmp_path: Path) -> None:
    path = written(tmp_path / "agent.yaml", "interval: 1.5s\nlisten: '[::1]:80'\nlog-format: JSON\n")
    config = load({"config": path, "seed": "42"}, {"OTEL_GPU_SOURCE": "Sim", "OTEL_GPU_DEADLINE": "250ms"}).config
    assert (config.sampling.interval_s, config.sampling.deadline_s, config.sampling.seed) == (1.5, 0.25, 42)
    assert (config.sampling.source, config.log.format, config.web.listen) == (
        SourceChoice.SIM,
        LogFormat.JSON,
        Address("::1", 80),
    )


def test_variables_are_named_after_their_keys() -> None:
    assert {setting.key: setting.variable for setting in SETTINGS}["proc-root"] == "OTEL_GPU_PROC_ROOT"


@pytest.mark.parametrize("variable", ["OTEL_GPU_INTERVAL", "HOST_PROC", "OTEL_EXPORTER_PROMETHEUS_PORT"])
def test_an_empty_variable_counts_as_unset(variable: str) -> None:
    assert load({}, {variable: ""}).values == load({}, {}).values


def test_an_empty_flag_is_a_bad_value_and_not_an_unset_one() -> None:
    assert complaint({"interval": ""}, {}).startswith("--interval: '' is not a valid duration; use ")


def test_defaults_of_a_command_have_the_lowest_precedence(tmp_path: Path) -> None:
    own = {"interval": "1s"}
    assert value_of(load({}, {}, defaults=own, command="once"), "interval") == Value(
        "interval", "1s", "default of once"
    )
    assert value_of(load({}, {}, defaults=own, command="once"), "deadline") == Value("deadline", "2s", "default")
    path = written(tmp_path / "agent.yaml", "interval: 3s\n")
    assert load({"config": path}, {}, defaults=own, command="once").config.sampling.interval_s == 3.0


# ---------------------------------------------------------------------------- variables others have given a meaning


def test_the_proc_root_may_be_given_as_host_proc() -> None:
    loaded = load({}, {"HOST_PROC": "/host/proc"})
    assert loaded.config.sampling.proc_root == Path("/host/proc")
    assert value_of(loaded, "proc-root").origin == "HOST_PROC"


def test_our_own_variable_beats_host_proc() -> None:
    loaded = load({}, {"HOST_PROC": "/host/proc", "OTEL_GPU_PROC_ROOT": "/mnt/proc"})
    assert value_of(loaded, "proc-root") == Value("proc-root", "/mnt/proc", "OTEL_GPU_PROC_ROOT")


@pytest.mark.parametrize(
    ("host", "port", "expected", "origin"),
    [
        (
            "0.0.0.0",
            "9000",
            Address("0.0.0.0", 9000),
            "OTEL_EXPORTER_PROMETHEUS_HOST and OTEL_EXPORTER_PROMETHEUS_PORT",
        ),
        ("0.0.0.0", "", Address("0.0.0.0", 9464), "OTEL_EXPORTER_PROMETHEUS_HOST"),
        ("", "9000", Address("127.0.0.1", 9000), "OTEL_EXPORTER_PROMETHEUS_PORT"),
        ("::", "9000", Address("::", 9000), "OTEL_EXPORTER_PROMETHEUS_HOST and OTEL_EXPORTER_PROMETHEUS_PORT"),
        ("[::1]", "1", Address("::1", 1), "OTEL_EXPORTER_PROMETHEUS_HOST and OTEL_EXPORTER_PROMETHEUS_PORT"),
    ],
)
def test_the_prometheus_variables_of_opentelemetry_make_one_address(
    host: str, port: str, expected: Address, origin: str
) -> None:
    loaded = load({}, {"OTEL_EXPORTER_PROMETHEUS_HOST": host, "OTEL_EXPORTER_PROMETHEUS_PORT": port})
    assert loaded.config.web.listen == expected
    assert value_of(loaded, "listen").origin == origin


def test_our_own_listen_beats_the_prometheus_variables_which_beat_the_file(tmp_path: Path) -> None:
    theirs = {"OTEL_EXPORTER_PROMETHEUS_PORT": "9000"}
    path = written(tmp_path / "agent.yaml", "listen: 127.0.0.1:1\n")
    assert load({"config": path}, theirs).config.web.listen.port == 9000
    assert load({}, {**theirs, "OTEL_GPU_LISTEN": "localhost:2"}).config.web.listen == Address("localhost", 2)


def test_an_error_about_the_prometheus_port_names_its_variable() -> None:
    problem = "is not a valid address; use a port from 0"
    for port in ("http", "70000"):
        text = complaint({}, {"OTEL_EXPORTER_PROMETHEUS_PORT": port})
        assert text.startswith(f"OTEL_EXPORTER_PROMETHEUS_PORT: '{port}' {problem}")
    both = {"OTEL_EXPORTER_PROMETHEUS_HOST": "h", "OTEL_EXPORTER_PROMETHEUS_PORT": "70000"}
    assert ": 'h:70000' is not a valid address; use a host name" in complaint({}, both)


def test_unknown_variables_with_our_prefix_are_listed() -> None:
    environment = {"OTEL_GPU_INTREVAL": "1s", "OTEL_GPU_SEED": "2", "OTEL_GPU_CONFIG": "", "OTEL_SERVICE_NAME": "x"}
    environment["OTEL_GPU_URL"] = "http://127.0.0.1:9464"  # top's own, and no setting
    assert load({}, environment).unknown_variables == ("OTEL_GPU_INTREVAL",)


# ---------------------------------------------------------------------------- the file


def test_the_file_may_be_named_by_a_variable_and_the_flag_beats_it(tmp_path: Path) -> None:
    first, second = (written(tmp_path / name, f"seed: {seed}\n") for name, seed in (("a.yaml", 11), ("b.yaml", 22)))
    environment = {"OTEL_GPU_CONFIG": first}
    assert load({}, environment).config.sampling.seed == 11
    assert load({"config": second}, environment).config.sampling.seed == 22


def test_an_unknown_key_is_refused_with_file_line_and_the_nearest_key(tmp_path: Path) -> None:
    path = written(tmp_path / "agent.yaml", "seed: 1\n\nintervall: 5s\n")
    assert complaint({"config": path}, {}) == f"{path}:3: there is no setting 'intervall'; did you mean interval?"


def test_an_unknown_key_without_a_near_one_is_refused_with_the_command_that_lists_all(tmp_path: Path) -> None:
    path = written(tmp_path / "agent.yaml", "zzz: 1\n")
    assert complaint({"config": path}, {}) == f"{path}:1: there is no setting 'zzz'; see otel-gpu config"


def test_a_missing_file_is_an_error_and_not_an_empty_configuration(tmp_path: Path) -> None:
    path = str(tmp_path / "none.yaml")
    assert complaint({"config": path}, {}) == f"cannot read the configuration file {path}: No such file or directory"


# ---------------------------------------------------------------------------- bad values


def test_any_text_is_valid_for_names_and_directories_only() -> None:
    any_text = {key for key, (*_, bad, _) in VALUES.items() if not bad}
    assert any_text == {"service-name", "node-name", "docker-cert-path"}


@pytest.mark.parametrize("key", [key for key, (*_, bad, _) in VALUES.items() if bad])
def test_an_invalid_value_is_refused_with_its_origin_and_what_is_valid(key: str, tmp_path: Path) -> None:
    setting = next(setting for setting in SETTINGS if setting.key == key)
    *_, text, noun = VALUES[key]
    path = written(tmp_path / "agent.yaml", f"{key}: {text}\n")
    problem = f"'{text}' is not a valid {noun}; use {setting.type.use}"  # on the page docs/configuration.md
    assert complaint({key: text}, {}) == f"--{key}: {problem}"
    assert complaint({}, {setting.variable: text}) == f"{setting.variable}: {problem}"
    assert complaint({"config": path}, {}) == f"{path}:1: {key}: {problem}"


def test_a_value_of_several_lines_is_quoted_in_one() -> None:
    assert complaint({}, {"OTEL_GPU_SOURCE": "a\nb"}).splitlines() == [
        "OTEL_GPU_SOURCE: 'a\\nb' is not a valid value; use nvml, sim or auto"
    ]


def test_a_long_text_is_cut(tmp_path: Path) -> None:
    cut = f"{'x' * 200}…"
    assert complaint({}, {"OTEL_GPU_SOURCE": "x" * 10_000}) == (
        f"OTEL_GPU_SOURCE: '{cut}' is not a valid value; use nvml, sim or auto"
    )
    path = written(tmp_path / "agent.yaml", f"{'x' * 1000}: 1\n")
    assert complaint({"config": path}, {}).startswith(f"{path}:1: there is no setting '{cut}'; see otel-gpu config")


def test_an_invalid_value_does_not_fall_back_to_a_lower_precedence() -> None:
    assert complaint({"seed": "x"}, {"OTEL_GPU_SEED": "2"}).startswith("--seed: ")


@pytest.mark.parametrize(
    ("word", "hint"),
    [("intervl", "did you mean interval?"), ("", "use one of interval, seed"), ("qqqq", "use one of interval, seed")],
)
def test_the_nearest_word_is_proposed_only_if_one_is_near(word: str, hint: str) -> None:
    assert nearest(word, ["seed", "interval"]) == hint
    assert nearest("qqqq", ["seed"]) == "use seed"


@pytest.mark.parametrize(
    ("word", "hint"),
    [("--flog-7", "did you mean --flag-7?"), ("--gpu", "see otel-gpu run --help"), ("-x", "see otel-gpu run --help")],
)
def test_more_than_eight_words_are_not_listed_where_help_lists_them(word: str, hint: str) -> None:
    flags = ["--url", *(f"--flag-{number}" for number in range(8))]
    assert nearest(word, flags, see="otel-gpu run --help") == hint
    assert nearest("--gpu", flags[1:], see="otel-gpu run --help") == f"use one of {', '.join(flags[1:])}"


# ---------------------------------------------------------------------------- what a command is about


def test_a_fixed_setting_overrides_variables_and_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "agent.yaml", "source: auto\n")
    loaded = load({"config": path}, {"OTEL_GPU_SOURCE": "nvml"}, fixed={"source": "sim"}, command="demo")
    assert loaded.config.sampling.source is SourceChoice.SIM
    assert value_of(loaded, "source") == Value("source", "sim", "demo")


def test_a_flag_may_repeat_a_fixed_setting_but_not_change_it() -> None:
    assert (
        load({"source": " Sim "}, {}, fixed={"source": "sim"}, command="demo").config.sampling.source
        is SourceChoice.SIM
    )
    with pytest.raises(UsageError, match=r"^--source: 'nvml' is not possible; demo always uses 'sim'$"):
        load({"source": "nvml"}, {}, fixed={"source": "sim"}, command="demo")
