from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpu.compat.exporters import EXPORTERS
from otel_gpu.compat.listener import Listener
from otel_gpu.config import Value, load, settle
from otel_gpu.errors import UsageError
from otel_gpu.settings_compat import NAMES
from otel_gpu.values import Address


def complaint(flags: dict[str, str], **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(flags, environment)
    told = str(caught.value)
    assert len(told.splitlines()) == 1
    return told


def only(flags: dict[str, str], **environment: str) -> Listener:
    (listener,) = load(flags, environment).config.compat
    return listener


def my_gpu(flags: str, **others: str) -> Listener:
    return only({"compat": "my-gpu-exporter", "my-gpu-exporter-flags": flags, **others})


# ---------------------------------------------------------------------------- names and ports


def test_the_names_are_those_of_the_table() -> None:
    assert tuple(EXPORTERS) == NAMES


@pytest.mark.parametrize(
    ("name", "port", "max_age_s", "prefix"),
    [
        ("gpu-inference", 9201, 10, ""),
        ("my-gpu-exporter", 9400, 1, "my_gpu_process_"),
        ("gpu-idle-exporter", 9835, 5, "gpu_idle_"),
        ("container-gpu-exporter", 9910, 3, ""),
        ("dcgm-exporter", 9400, 30, "DCGM_FI_DEV_"),
    ],
)
def test_an_exporter_is_where_its_own_users_look_for_it(name: str, port: int, max_age_s: float, prefix: str) -> None:
    assert only({"compat": name}) == Listener(name, Address("", port), "/metrics", max_age_s, prefix)


def test_a_port_of_ones_own_and_several_between_commas() -> None:
    told = load({"compat": " gpu-inference:1 , dcgm-exporter "}, {}).config.compat
    assert [(each.exporter, each.address.port) for each in told] == [("gpu-inference", 1), ("dcgm-exporter", 9400)]


@pytest.mark.parametrize("text", ["gpu-inference:0", "gpu-inference:65536", "gpu-inference:x", "a b", "a:", "a,a"])
def test_what_is_no_name_with_a_port_is_refused(text: str) -> None:
    assert complaint({"compat": text}).startswith(f"--compat: compat is {text!r}; allowed is nothing, or NAME or NAME:")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    told = complaint({}, OTEL_GPU_COMPAT="gpu-idle-exportr")
    assert told.startswith("OTEL_GPU_COMPAT: compat is 'gpu-idle-exportr'; allowed is gpu-inference, ")
    assert told.endswith("'gpu-idle-exportr' is none of them; did you mean gpu-idle-exporter?")
    assert complaint({"compat": "zzz"}).endswith("'zzz' is none of them")


@pytest.mark.parametrize(
    ("flags", "first", "second", "port"),
    [
        ({"compat": "my-gpu-exporter,dcgm-exporter"}, "my-gpu-exporter", "dcgm-exporter", 9400),
        ({"compat": "gpu-inference:7,gpu-idle-exporter:7"}, "gpu-inference", "gpu-idle-exporter", 7),
        ({"compat": "gpu-inference:9464"}, "--listen", "gpu-inference", 9464),
    ],
)
def test_two_on_one_port_are_refused_with_a_way_out(flags: dict[str, str], first: str, second: str, port: int) -> None:
    told = complaint(flags)
    assert told == (
        f"--compat: compat is {flags['compat']!r}; {first} and {second} would both listen on port {port}; "
        f"allowed is a port for each, such as {second}:{port + 1}"
    )


def test_one_port_on_two_hosts_is_two_places() -> None:
    flags = {"compat": "my-gpu-exporter,dcgm-exporter", "my-gpu-exporter-flags": "--listen-address=[::1]:9400"}
    assert [each.address.host for each in load(flags, {}).config.compat] == ["::1", ""]


# ---------------------------------------------------------------------------- their variables


def test_variables_count_where_their_exporter_is_stood_in_for() -> None:
    variables = {"HTTP_PORT": "1234", "POLL_INTERVAL": "1m30s", "NODE_NAME": "n1", "POD_NAME": "p"}
    told = only({"compat": "gpu-idle-exporter"}, **variables, POD_NAMESPACE="ns", EXPORTER_PORT="nonsense")
    assert told.address == Address("", 1234)
    assert told.max_age_s == 90
    assert told.labels == (("node", "n1"), ("pod", "p"), ("namespace", "ns"))


def test_labels_are_there_only_where_their_variables_are_set() -> None:
    assert only({"compat": "gpu-idle-exporter"}, POD_NAME="", NODE_NAME="n1").labels == (("node", "n1"),)
    assert only({"compat": "gpu-inference"}, NODE_NAME="n1").labels == ()


def test_variables_of_somebody_else_are_not_even_looked_at() -> None:
    environment = {"HTTP_PORT": "x", "EXPORTER_PORT": "x", "POLL_INTERVAL": "x", "DCGM_EXPORTER_LISTEN": "x"}
    assert load({}, environment).config.compat == ()
    assert load({"compat": "container-gpu-exporter"}, environment).config.compat[0].address.port == 9910


def test_the_scrape_interval_is_seconds_and_dcgms_is_milliseconds() -> None:
    assert only({"compat": "gpu-inference"}, SCRAPE_INTERVAL="2.5", EXPORTER_PORT="7").max_age_s == 2.5
    told = only({"compat": "dcgm-exporter"}, DCGM_EXPORTER_INTERVAL="1500", DCGM_EXPORTER_LISTEN="10.0.0.1:7")
    assert (told.max_age_s, told.address) == (1.5, Address("10.0.0.1", 7))


def test_the_agents_own_interval_is_not_theirs_to_change() -> None:
    config = load({"compat": "gpu-idle-exporter,gpu-inference"}, {"POLL_INTERVAL": "1s", "SCRAPE_INTERVAL": "1"}).config
    assert config.interval_s == 5


def test_a_port_in_the_setting_beats_a_variable() -> None:
    assert only({"compat": "gpu-idle-exporter:9"}, HTTP_PORT="8").address.port == 9


@pytest.mark.parametrize(
    ("name", "variable", "text", "allowed"),
    [
        ("gpu-idle-exporter", "HTTP_PORT", "0", "a port from 1 to 65535"),
        ("gpu-idle-exporter", "POLL_INTERVAL", "5", "a duration up to 24h, such as 5s or 1m30s"),
        ("gpu-idle-exporter", "POLL_INTERVAL", "25h", "a duration up to 24h, such as 5s or 1m30s"),
        ("gpu-inference", "EXPORTER_PORT", "http", "a port from 1 to 65535"),
        ("gpu-inference", "SCRAPE_INTERVAL", "10s", "seconds, up to 86400"),
        ("gpu-inference", "SCRAPE_INTERVAL", "0", "seconds, up to 86400"),
        ("dcgm-exporter", "DCGM_EXPORTER_INTERVAL", "1.5", "milliseconds, up to 86400000"),
        ("dcgm-exporter", "DCGM_EXPORTER_LISTEN", "9400", ":PORT on the agent's host, or HOST:PORT, with a port from"),
        ("dcgm-exporter", "DCGM_EXPORTER_LISTEN", "h:0", ":PORT on the agent's host, or HOST:PORT, with a port from"),
    ],
)
def test_a_bad_variable_is_told_in_one_line(name: str, variable: str, text: str, allowed: str) -> None:
    told = complaint({"compat": name}, **{variable: text})
    assert told.startswith(f"{variable} is {text!r}; allowed is {allowed}")


def test_what_is_in_effect_is_shown_with_its_port_and_where_it_comes_from() -> None:
    loaded = load({"compat": "gpu-idle-exporter,gpu-inference:5"}, {"HTTP_PORT": "7", "POD_NAME": "p"})
    shown = Value("compat", "gpu-idle-exporter:7,gpu-inference:5", "--compat, HTTP_PORT, POD_NAME")
    assert [value for value in loaded.values if value.key == "compat"] == [shown]


def test_what_is_wrong_is_shown_as_it_was_written() -> None:
    settled = settle({"compat": "gpu-idle"}, {})
    assert isinstance(settled.config, UsageError)
    assert Value("compat", "gpu-idle", "--compat") in settled.values


# ---------------------------------------------------------------------------- my-gpu-exporter's flags


def test_its_flags_are_those_of_its_command_line() -> None:
    told = my_gpu(
        "--metric-prefix=gpu --metrics-path /m -listen-address=0.0.0.0:9500 --kubernetes-enabled=false "
        "--process-scan-interval=20s --dcgm-update-frequency=2s --metric-retention=5m --log-level=info "
        "--pod-resources-socket=/var/lib/kubelet/pod-resources/kubelet.sock --enable-energy-estimation=true "
        "--gpu-idle-power=0"
    )
    assert told == Listener("my-gpu-exporter", Address("0.0.0.0", 9500), "/m", 2.0, "gpu_", kubernetes=False)


def test_they_stand_in_the_file_too_and_count_for_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text('compat: gpu-inference\nmy-gpu-exporter-flags: "--whatever=1"\n', encoding="utf-8")
    assert only({"config": str(file)}).exporter == "gpu-inference"
    assert complaint({"config": str(file), "compat": "my-gpu-exporter"}).startswith(
        "my-gpu-exporter-flags: --whatever is no flag of my-gpu-exporter; allowed is --dcgm-update-frequency, --process"
    )


@pytest.mark.parametrize("text", ["metric-prefix=x", "--metric-prefix", "--a=1 --a=2", "--a='", "--=x", "-"])
def test_what_are_no_flags_are_refused(text: str) -> None:
    assert complaint({"my-gpu-exporter-flags": text}).startswith("--my-gpu-exporter-flags: my-gpu-exporter-flags is ")


@pytest.mark.parametrize(
    "flag",
    [
        "metric-prefix=1x",
        "metric-prefix=a-b",
        "metrics-path=metrics",
        "metrics-path=/health",
        "listen-address=9400",
        "kubernetes-enabled=perhaps",
        "process-scan-interval=10",
        "dcgm-update-frequency=0s",
        "enable-energy-estimation=false",
        "gpu-idle-power=25",
        "log-level=loud",
        "pod-resources-socket=kubelet.sock",
    ],
)
def test_a_bad_flag_is_told_in_one_line(flag: str) -> None:
    name, _, value = flag.partition("=")
    told = complaint({"compat": "my-gpu-exporter", "my-gpu-exporter-flags": f"--{flag}"})
    assert told.startswith(f"my-gpu-exporter-flags: --{name} is {value!r}; allowed is ")


@pytest.mark.parametrize(
    ("flag", "agents", "value"),
    [
        ("metric-retention=10m", "retention", "10m"),
        ("log-level=warn", "log-level", "warning"),
        ("pod-resources-socket=/x.sock", "pod-resources-socket", "/x.sock"),
    ],
)
def test_what_the_agent_decides_for_all_must_agree_with_it(flag: str, agents: str, value: str) -> None:
    told = complaint({"compat": "my-gpu-exporter", "my-gpu-exporter-flags": f"--{flag}"})
    assert told.endswith(f"; allowed is what the agent does: say --{agents} to it")
    assert my_gpu(f"--{flag}", **{agents: value}).exporter == "my-gpu-exporter"
