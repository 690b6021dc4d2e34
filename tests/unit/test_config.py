from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from otel_gpu.attribution.options import EnergyModel, EnergyPolicy
from otel_gpu.config import SETTINGS, Config, Loaded, LogFormat, LogLevel, Scope, SourceChoice, Value, load, nearest
from otel_gpu.control.socket_path import ControlSocket
from otel_gpu.errors import UsageError
from otel_gpu.settings_export import Compression, Exporter, Protocol, Temporality
from otel_gpu.settings_names import Environment, KubernetesApi
from otel_gpu.settings_state import StateDir
from otel_gpu.values import Address

A_VALUE = {
    "interval": ("7s", "8s", "9s"),
    "deadline": ("3s", "4s", "5s"),
    "source": ("sim", "auto", "sim"),
    "seed": ("2", "3", "4"),
    "proc-root": ("/a", "/b", "/c"),
    "sys-root": ("/a", "/b", "/c"),
    "scope": ("pod", "node", "pod"),
    "retention": ("6m", "7m", "8m"),
    "energy-policy": ("sm", "memory", "none"),
    "energy-model": ("sm", "learned", "sm"),
    "price-gpu-hour": ("1", "A100=2", "A100=2,H100=3"),
    "price-kwh": ("0.1", "0.2", "0.3"),
    "currency": ("EUR", "CHF", "SEK"),
    "listen": ("a:1", "b:2", "c:3"),
    "web-config": ("a.yml", "/b.yml", "c/d.yml"),
    "control-socket": ("/a.sock", "none", "/c.sock"),
    "state-dir": ("/a", "none", "/c"),
    "log-level": ("debug", "warning", "error"),
    "log-format": ("json", "json", "json"),
    "environment": ("docker", "slurm", "host"),
    "docker-host": ("unix:///a.sock", "tcp://b:2375", "https://c:2376"),
    "docker-tls-verify": ("on", "true", "on"),
    "docker-cert-path": ("a", "/b", "c/"),
    "podman-host": ("/a.sock", "unix:///b.sock", "http://c:1"),
    "cri-socket": ("/a.sock", "unix:///b.sock", "/c.sock"),
    "pod-resources-socket": ("/a.sock", "unix:///b.sock", "/c.sock"),
    "kubernetes-api": ("always", "never", "always"),
    "node-name": ("a", "b", "c"),
    "container-labels": ("a", "a,b", "c"),
    "pod-labels": ("app", "app.kubernetes.io/name", "team"),
    "exporters": ("console", "prometheus", "none"),
    "prometheus": ("on", "true", "on"),
    "export-interval": ("16s", "17s", "18s"),
    "export-timeout": ("31s", "32s", "33s"),
    "otlp-protocol": ("grpc", "grpc", "grpc"),
    "otlp-endpoint": ("http://a", "http://b:1", "https://c/d"),
    "otlp-headers": ("a=1", "b=2", "c=3"),
    "otlp-timeout": ("11s", "12s", "13s"),
    "otlp-compression": ("gzip", "gzip", "gzip"),
    "otlp-certificate": ("a.pem", "/b.pem", "c/d.pem"),
    "otlp-client-key": ("a.key", "/b.key", "c/d.key"),
    "otlp-client-certificate": ("a.crt", "/b.crt", "c/d.crt"),
    "otlp-insecure": ("true", "false", "true"),
    "otlp-temporality": ("delta", "lowmemory", "delta"),
    "resource-attributes": ("a=b", "c=d", "e=f,g=h"),
    "service-name": ("a", "b", "c"),
    "process-metrics": ("off", "false", "off"),
    "openmetrics-created": ("on", "true", "on"),
    "compat": ("gpu-inference:1", "gpu-idle-exporter:2,dcgm-exporter:3", "my-gpu-exporter:4"),
    "my-gpu-exporter-flags": ("--log-level=info", "--metric-prefix=a", "--metrics-path=/m"),
}
"""For each setting something that may stand in the file, the environment and a flag."""


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


def test_without_a_word_from_anybody_the_defaults_hold() -> None:
    loaded = load({}, {})
    assert loaded.config == Config(
        interval_s=5.0,
        deadline_s=2.0,
        source=SourceChoice.NVML,
        seed=1,
        proc_root=Path("/proc"),
        sys_root=Path("/sys"),
        scope=Scope.NODE,
        retention_s=300.0,
        energy_policy=EnergyPolicy.RESIDENT,
        energy_model=EnergyModel.LEARNED,
        price_gpu_hour={},
        price_kwh=None,
        currency="USD",
        listen=Address("127.0.0.1", 9464),
        web_config=None,
        control_socket=ControlSocket(auto=True),
        log_level=LogLevel.INFO,
        log_format=LogFormat.LOGFMT,
        state_dir=StateDir(auto=True),
        environment=Environment.AUTO,
        docker_host=None,
        docker_tls_verify=False,
        docker_cert_path=None,
        podman_host=None,
        cri_socket=None,
        pod_resources_socket=None,
        kubernetes_api=KubernetesApi.AUTO,
        node_name="",
        container_labels=(),
        pod_labels=(),
        exporters=(Exporter.OTLP,),
        prometheus=False,
        export_interval_s=15.0,
        export_timeout_s=30.0,
        otlp_protocol=Protocol.HTTP,
        otlp_endpoint=None,
        otlp_headers={},
        otlp_timeout_s=10.0,
        otlp_compression=Compression.NONE,
        otlp_certificate=None,
        otlp_client_key=None,
        otlp_client_certificate=None,
        otlp_insecure=None,
        otlp_temporality=Temporality.CUMULATIVE,
        resource_attributes={},
        service_name="",
        process_metrics=True,
        openmetrics_created=False,
        compat=(),
        my_gpu_exporter_flags={},
    )
    assert {value.origin for value in loaded.values} == {"default"}
    assert loaded.unknown_variables == ()


def test_every_field_of_the_configuration_has_a_setting_and_every_setting_a_field() -> None:
    assert sorted(setting.field for setting in SETTINGS) == sorted(field.name for field in fields(Config))
    assert set(A_VALUE) == {setting.key for setting in SETTINGS}


@pytest.mark.parametrize("key", A_VALUE)
def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(key: str, tmp_path: Path) -> None:
    setting = next(setting for setting in SETTINGS if setting.key == key)
    in_file, in_environment, in_flag = A_VALUE[key]
    path = written(tmp_path / "agent.yaml", f"# a comment\n{key}: {in_file}\n")

    from_default = value_of(load({}, {}), key)
    from_file = value_of(load({"config": path}, {}), key)
    from_environment = value_of(load({"config": path}, {setting.variable: in_environment}), key)
    from_flag = value_of(load({"config": path, key: in_flag}, {setting.variable: in_environment}), key)

    assert from_default == Value(key, setting.default, "default")
    assert from_file == Value(key, setting.shown(in_file), f"{path}:2")
    assert from_environment == Value(key, setting.shown(in_environment), setting.variable)
    assert from_flag == Value(key, setting.shown(in_flag), f"--{key}")


def test_what_is_settled_is_what_the_configuration_holds(tmp_path: Path) -> None:
    path = written(tmp_path / "agent.yaml", "interval: 1.5s\nlisten: '[::1]:80'\nlog-format: JSON\n")
    config = load({"config": path, "seed": "42"}, {"OTEL_GPU_SOURCE": "Sim", "OTEL_GPU_DEADLINE": "250ms"}).config
    assert (config.interval_s, config.deadline_s, config.seed) == (1.5, 0.25, 42)
    assert (config.source, config.log_format, config.listen) == (SourceChoice.SIM, LogFormat.JSON, Address("::1", 80))


def test_variables_are_named_after_their_keys() -> None:
    assert {setting.key: setting.variable for setting in SETTINGS}["proc-root"] == "OTEL_GPU_PROC_ROOT"


@pytest.mark.parametrize("variable", ["OTEL_GPU_INTERVAL", "HOST_PROC", "OTEL_EXPORTER_PROMETHEUS_PORT"])
def test_an_empty_variable_counts_as_unset(variable: str) -> None:
    assert load({}, {variable: ""}).values == load({}, {}).values


def test_an_empty_flag_is_a_bad_value_and_not_an_unset_one() -> None:
    assert complaint({"interval": ""}, {}).startswith("--interval: interval is ''; allowed is ")


def test_a_command_may_have_defaults_of_its_own_and_they_are_the_weakest(tmp_path: Path) -> None:
    own = {"interval": "1s"}
    assert value_of(load({}, {}, defaults=own, command="once"), "interval") == Value(
        "interval", "1s", "default of once"
    )
    assert value_of(load({}, {}, defaults=own, command="once"), "deadline") == Value("deadline", "2s", "default")
    path = written(tmp_path / "agent.yaml", "interval: 3s\n")
    assert load({"config": path}, {}, defaults=own, command="once").config.interval_s == 3.0


# ---------------------------------------------------------------------------- variables others have given a meaning


def test_the_proc_root_may_be_given_as_host_proc() -> None:
    loaded = load({}, {"HOST_PROC": "/host/proc"})
    assert loaded.config.proc_root == Path("/host/proc")
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
    assert loaded.config.listen == expected
    assert value_of(loaded, "listen").origin == origin


def test_our_own_listen_beats_the_prometheus_variables_which_beat_the_file(tmp_path: Path) -> None:
    theirs = {"OTEL_EXPORTER_PROMETHEUS_PORT": "9000"}
    path = written(tmp_path / "agent.yaml", "listen: 127.0.0.1:1\n")
    assert load({"config": path}, theirs).config.listen.port == 9000
    assert load({}, {**theirs, "OTEL_GPU_LISTEN": "localhost:2"}).config.listen == Address("localhost", 2)


def test_a_bad_prometheus_port_is_blamed_on_its_variable() -> None:
    text = complaint({}, {"OTEL_EXPORTER_PROMETHEUS_PORT": "http"})
    assert text.startswith("OTEL_EXPORTER_PROMETHEUS_PORT: listen is '127.0.0.1:http'; allowed is HOST:PORT")


def test_variables_that_look_like_ours_and_are_none_are_told() -> None:
    environment = {"OTEL_GPU_INTREVAL": "1s", "OTEL_GPU_SEED": "2", "OTEL_GPU_CONFIG": "", "OTEL_SERVICE_NAME": "x"}
    environment["OTEL_GPU_URL"] = "http://127.0.0.1:9464"  # top's own, and no setting
    assert load({}, environment).unknown_variables == ("OTEL_GPU_INTREVAL",)


# ---------------------------------------------------------------------------- the file


def test_the_file_may_be_named_by_a_variable_and_the_flag_beats_it(tmp_path: Path) -> None:
    first, second = (written(tmp_path / name, f"seed: {seed}\n") for name, seed in (("a.yaml", 11), ("b.yaml", 22)))
    environment = {"OTEL_GPU_CONFIG": first}
    assert load({}, environment).config.seed == 11
    assert load({"config": second}, environment).config.seed == 22


def test_an_unknown_key_is_told_with_file_line_and_what_was_probably_meant(tmp_path: Path) -> None:
    path = written(tmp_path / "agent.yaml", "seed: 1\n\nintervall: 5s\n")
    assert complaint({"config": path}, {}) == f"{path}:3: there is no setting 'intervall'; did you mean interval?"


def test_an_unknown_key_like_no_other_is_answered_with_all_there_are(tmp_path: Path) -> None:
    path = written(tmp_path / "agent.yaml", "zzz: 1\n")
    expected = "allowed are " + ", ".join(sorted(setting.key for setting in SETTINGS))
    assert complaint({"config": path}, {}) == f"{path}:1: there is no setting 'zzz'; {expected}"


def test_a_missing_file_is_an_error_and_not_an_empty_configuration(tmp_path: Path) -> None:
    path = str(tmp_path / "none.yaml")
    assert complaint({"config": path}, {}) == f"cannot read the configuration file {path}: No such file or directory"


# ---------------------------------------------------------------------------- bad values

A_DAEMON = "a URL such as unix:///run/x.sock, tcp://host:2376, http://host:2375 or https://host:2376"
A_SOCKET = "nothing, or the path of a socket, such as unix:///run/x.sock or /run/x.sock"
LABELS = "nothing, or keys of labels between commas, such as team,app.kubernetes.io/name"

BAD = {
    "interval": ("999ms", "a duration from 1s to 1h, such as 5s"),
    "deadline": ("2", "a duration from 100ms to 1m, such as 2s"),
    "source": ("cuda", "nvml, sim or auto"),
    "seed": ("-1", "a whole number from 0 to 9223372036854775807"),
    "proc-root": ("proc", "an absolute path"),
    "sys-root": ("sys", "an absolute path"),
    "scope": ("cluster", "node or pod"),
    "retention": ("0s", "a duration from 1s to 24h, such as 5m"),
    "energy-policy": ("fair", "resident, sm, memory or none"),
    "energy-model": ("magic", "sm or learned"),
    "price-gpu-hour": (
        "A100=",
        "nothing, an amount such as 2.5 for every GPU, or amounts by model such as A100=2.5,H100=4",
    ),
    "price-kwh": ("-1", "nothing, or an amount such as 0.3"),
    "currency": ("euro", "three capital letters, such as EUR"),
    "listen": ("9464", "HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9464 or [::1]:9464"),
    "web-config": ("certs/", "nothing, or the path of a file"),
    "control-socket": ("off", "auto, none, or an absolute path of at most 107 bytes"),
    "state-dir": ("here", "auto, none, or an absolute path"),
    "log-level": ("loud", "debug, info, warning or error"),
    "log-format": ("xml", "logfmt or json"),
    "environment": ("cloud", "auto, docker, podman, kubernetes, slurm or host"),
    "docker-host": ("ssh://a", A_DAEMON),
    "docker-tls-verify": ("maybe", "on or off"),
    "podman-host": ("a.sock", A_DAEMON),
    "cri-socket": ("tcp://a:1", A_SOCKET),
    "pod-resources-socket": ("a.sock", A_SOCKET),
    "kubernetes-api": ("sometimes", "auto, always or never"),
    "container-labels": ("a b", LABELS),
    "pod-labels": ("a b", LABELS),
    "exporters": ("none,otlp", "otlp, prometheus, console, several of them between commas, or none"),
    "prometheus": ("maybe", "on or off"),
    "export-interval": ("99ms", "a duration from 100ms to 1h, such as 15s"),
    "export-timeout": ("2h", "a duration from 100ms to 1h, such as 30s"),
    "otlp-protocol": ("http/json", "http/protobuf or grpc"),
    "otlp-endpoint": (
        "ftp://a",
        "a URL such as http://localhost:4318 or https://collector:4317, without user name and password",
    ),
    "otlp-headers": ("…", "nothing, or key=value pairs between commas, percent-encoded where needed"),
    "otlp-timeout": ("0s", "a duration from 100ms to 10m, such as 10s"),
    "otlp-compression": ("zstd", "none or gzip"),
    "otlp-certificate": ("certs/", "nothing, or the path of a file"),
    "otlp-client-key": ("certs/", "nothing, or the path of a file"),
    "otlp-client-certificate": ("certs/", "nothing, or the path of a file"),
    "otlp-insecure": ("perhaps", "nothing, true or false"),
    "otlp-temporality": ("monthly", "cumulative, delta or lowmemory"),
    "resource-attributes": ("a", "nothing, or key=value pairs between commas, percent-encoded where needed"),
    "process-metrics": ("2", "on or off"),
    "openmetrics-created": ("2", "on or off"),
    "compat": (
        "gpu-inference:0",
        (
            "nothing, or NAME or NAME:PORT between commas, each once, with a port from 1 to 65535, of gpu-inference, "
            "my-gpu-exporter, gpu-idle-exporter, container-gpu-exporter, dcgm-exporter"
        ),
    ),
    "my-gpu-exporter-flags": (
        "metric-prefix",
        "nothing, or flags as on its own command line, such as --metric-prefix=gpu --kubernetes-enabled",
    ),
}


def test_every_setting_has_a_bad_value_here() -> None:
    any_text = {"service-name", "node-name", "docker-cert-path"}
    assert set(BAD) == {setting.key for setting in SETTINGS} - any_text


@pytest.mark.parametrize("key", BAD)
def test_a_bad_value_is_told_in_one_line_with_origin_key_value_and_what_is_allowed(key: str, tmp_path: Path) -> None:
    setting = next(setting for setting in SETTINGS if setting.key == key)
    text, allowed = BAD[key]
    path = written(tmp_path / "agent.yaml", f"{key}: {text}\n")
    ending = f": {key} is '{text}'; allowed is {allowed}"
    assert complaint({key: text}, {}) == f"--{key}{ending}"
    assert complaint({}, {setting.variable: text}) == f"{setting.variable}{ending}"
    assert complaint({"config": path}, {}) == f"{path}:1{ending}"


def test_a_value_of_several_lines_is_quoted_in_one() -> None:
    assert complaint({}, {"OTEL_GPU_SOURCE": "a\nb"}).splitlines() == [
        "OTEL_GPU_SOURCE: source is 'a\\nb'; allowed is nvml, sim or auto"
    ]


def test_a_bad_value_is_refused_even_where_a_good_one_of_lower_rank_exists() -> None:
    assert complaint({"seed": "x"}, {"OTEL_GPU_SEED": "2"}).startswith("--seed: ")


@pytest.mark.parametrize(
    ("word", "hint"),
    [("intervl", "did you mean interval?"), ("", "allowed are interval, seed"), ("qqqq", "allowed are interval, seed")],
)
def test_the_nearest_word_is_proposed_only_where_one_is_near(word: str, hint: str) -> None:
    assert nearest(word, ["seed", "interval"]) == hint


# ---------------------------------------------------------------------------- what a command is about


def test_what_a_command_is_about_beats_variables_and_the_file_and_has_the_command_as_origin(tmp_path: Path) -> None:
    path = written(tmp_path / "agent.yaml", "source: auto\n")
    loaded = load({"config": path}, {"OTEL_GPU_SOURCE": "nvml"}, fixed={"source": "sim"}, command="demo")
    assert loaded.config.source is SourceChoice.SIM
    assert value_of(loaded, "source") == Value("source", "sim", "demo")


def test_a_flag_may_say_what_the_command_is_about_and_not_the_contrary() -> None:
    assert load({"source": " Sim "}, {}, fixed={"source": "sim"}, command="demo").config.source is SourceChoice.SIM
    with pytest.raises(UsageError, match=r"^--source: source is 'nvml'; with demo it is always 'sim'$"):
        load({"source": "nvml"}, {}, fixed={"source": "sim"}, command="demo")
