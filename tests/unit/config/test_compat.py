from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.compat.families import FAMILIES
from otel_gpu.config import Value, load, resolve
from otel_gpu.config.checks import check_exports
from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.config.groups import Listener
from otel_gpu.config.values import Address
from otel_gpu.errors import UsageError


def complaint(flags: dict[str, str], **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(flags, environment)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def only(flags: dict[str, str], **environment: str) -> Listener:
    (listener,) = load(flags, environment).config.compat.listeners
    return listener


def my_gpu(flags: str, **others: str) -> Listener:
    return only({"compat": "my-gpu-exporter", "my-gpu-exporter-flags": flags, **others})


# ---------------------------------------------------------------------------- names and ports


def test_every_exporter_has_metrics() -> None:
    assert tuple(EXPORTERS) == tuple(FAMILIES)


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
def test_an_exporter_has_its_usual_port_path_and_prefix(name: str, port: int, max_age_s: float, prefix: str) -> None:
    assert only({"compat": name}) == Listener(name, Address("", port), "/metrics", max_age_s, prefix)


def test_several_exporters_with_and_without_a_port() -> None:
    listeners = load({"compat": " gpu-inference:1 , dcgm-exporter "}, {}).config.compat.listeners
    assert [(each.exporter, each.address.port) for each in listeners] == [("gpu-inference", 1), ("dcgm-exporter", 9400)]


@pytest.mark.parametrize("text", ["gpu-inference:0", "gpu-inference:65536", "gpu-inference:x", "a b", "a:", "a,a"])
def test_an_invalid_list_is_refused(text: str) -> None:
    assert complaint({"compat": text}).startswith(f"--compat: {text!r} is not a valid list; use NAME or NAME:")


def test_an_unknown_exporter_is_refused_with_the_nearest_name() -> None:
    message = complaint({}, OTEL_GPU_COMPAT="gpu-idle-exportr")
    assert message == "OTEL_GPU_COMPAT: there is no exporter 'gpu-idle-exportr'; did you mean gpu-idle-exporter?"
    expected = "--compat: there is no exporter 'zzz'; use gpu-inference, my-gpu-exporter, gpu-idle-exporter, "
    assert complaint({"compat": "zzz"}).startswith(expected)


@pytest.mark.parametrize(
    ("flags", "first", "second", "port"),
    [
        ({"compat": "my-gpu-exporter,dcgm-exporter"}, "my-gpu-exporter", "dcgm-exporter", 9400),
        ({"compat": "gpu-inference:7,gpu-idle-exporter:7"}, "gpu-inference", "gpu-idle-exporter", 7),
        ({"compat": "gpu-inference:9464"}, "--listen", "gpu-inference", 9464),
    ],
)
def test_two_on_one_port_are_refused_with_a_free_port(
    flags: dict[str, str], first: str, second: str, port: int
) -> None:
    message = complaint(flags)
    assert message == (
        f"--compat: {first} and {second} both listen on port {port}; "
        f"use a port for each, for example {second}:{port + 1}"
    )


def test_one_port_on_two_hosts_is_valid() -> None:
    flags = {"compat": "my-gpu-exporter,dcgm-exporter", "my-gpu-exporter-flags": "--listen-address=[::1]:9400"}
    assert [each.address.host for each in load(flags, {}).config.compat.listeners] == ["::1", ""]


# ---------------------------------------------------------------------------- their variables


def test_variables_of_a_served_exporter_apply() -> None:
    variables = {"HTTP_PORT": "1234", "POLL_INTERVAL": "1m30s", "NODE_NAME": "n1", "POD_NAME": "p"}
    listener = only({"compat": "gpu-idle-exporter"}, **variables, POD_NAMESPACE="ns", EXPORTER_PORT="nonsense")
    assert listener.address == Address("", 1234)
    assert listener.max_age_s == 90
    assert listener.labels == (("node", "n1"), ("pod", "p"), ("namespace", "ns"))


def test_labels_exist_only_if_their_variables_are_set() -> None:
    assert only({"compat": "gpu-idle-exporter"}, POD_NAME="", NODE_NAME="n1").labels == (("node", "n1"),)
    assert only({"compat": "gpu-inference"}, NODE_NAME="n1").labels == ()


def test_variables_of_other_exporters_are_ignored() -> None:
    environment = {"HTTP_PORT": "x", "EXPORTER_PORT": "x", "POLL_INTERVAL": "x", "DCGM_EXPORTER_LISTEN": "x"}
    assert load({}, environment).config.compat.listeners == ()
    assert load({"compat": "container-gpu-exporter"}, environment).config.compat.listeners[0].address.port == 9910


def test_the_scrape_interval_is_seconds_and_dcgms_is_milliseconds() -> None:
    assert only({"compat": "gpu-inference"}, SCRAPE_INTERVAL="2.5", EXPORTER_PORT="7").max_age_s == 2.5
    listener = only({"compat": "dcgm-exporter"}, DCGM_EXPORTER_INTERVAL="1500", DCGM_EXPORTER_LISTEN="10.0.0.1:7")
    assert (listener.max_age_s, listener.address) == (1.5, Address("10.0.0.1", 7))


def test_an_exporters_interval_does_not_change_the_agents() -> None:
    config = load({"compat": "gpu-idle-exporter,gpu-inference"}, {"POLL_INTERVAL": "1s", "SCRAPE_INTERVAL": "1"}).config
    assert config.sampling.interval_s == 5


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
def test_an_invalid_variable_is_an_error_in_one_line(name: str, variable: str, text: str, allowed: str) -> None:
    message = complaint({"compat": name}, **{variable: text})
    assert message.startswith(f"{variable}: {text!r} is not valid; use {allowed}")


def test_compat_is_shown_with_ports_and_all_origins() -> None:
    loaded = load({"compat": "gpu-idle-exporter,gpu-inference:5"}, {"HTTP_PORT": "7", "POD_NAME": "p"})
    shown = Value("compat", "gpu-idle-exporter:7,gpu-inference:5", "--compat, HTTP_PORT, POD_NAME")
    assert [value for value in loaded.values if value.key == "compat"] == [shown]


def test_an_invalid_value_is_shown_as_written() -> None:
    resolved = resolve({"compat": "gpu-idle"}, {})
    assert isinstance(resolved.config, UsageError)
    assert Value("compat", "gpu-idle", "--compat") in resolved.values


# ---------------------------------------------------------------------------- my-gpu-exporter's flags


def test_the_flags_of_my_gpu_exporter_apply() -> None:
    listener = my_gpu(
        "--metric-prefix=gpu --metrics-path /m -listen-address=0.0.0.0:9500 --kubernetes-enabled=false "
        "--process-scan-interval=20s --dcgm-update-frequency=2s --metric-retention=5m --log-level=info "
        "--pod-resources-socket=/var/lib/kubelet/pod-resources/kubelet.sock --enable-energy-estimation=true "
        "--gpu-idle-power=0"
    )
    expected = Listener("my-gpu-exporter", Address("0.0.0.0", 9500), "/m", 2.0, "gpu_", kubernetes=False)
    assert listener == replace(expected, retention_s=300.0)


def test_flags_have_the_syntax_of_go() -> None:
    assert my_gpu("--kubernetes-enabled").kubernetes
    assert my_gpu("-kubernetes-enabled -metric-prefix x") == my_gpu("--metric-prefix=x")
    assert not my_gpu("--kubernetes-enabled=false --enable-energy-estimation").kubernetes
    assert my_gpu("--metric-prefix=a --metric-prefix=b").prefix == "b_"
    assert my_gpu("--metric-retention=1m0.5s").retention_s == 60.5


def test_an_unknown_flag_is_refused_with_all_flags() -> None:
    assert complaint({"compat": "my-gpu-exporter", "my-gpu-exporter-flags": "--whatever=1"}).startswith(
        "--my-gpu-exporter-flags: my-gpu-exporter has no flag --whatever; use --dcgm-update-frequency, --process"
    )


@pytest.mark.parametrize("compat", ["", "gpu-inference"])
def test_flags_without_their_exporter_are_refused(compat: str) -> None:
    loaded = load({"compat": compat, "my-gpu-exporter-flags": "--metric-prefix=x"}, {})
    with pytest.raises(UsageError) as caught:
        check_exports(loaded)
    assert str(caught.value) == (
        "--my-gpu-exporter-flags: '--metric-prefix=x' has no effect without my-gpu-exporter in compat; "
        "add --compat my-gpu-exporter"
    )
    check_exports(load({"compat": "my-gpu-exporter", "my-gpu-exporter-flags": "--metric-prefix=x"}, {}))


@pytest.mark.parametrize(
    "text",
    ["metric-prefix=x", "--metric-prefix", "--a='", "--=x", "-", "--", "---a=1", "--kubernetes-enabled false"],
)
def test_invalid_flags_are_refused(text: str) -> None:
    assert complaint({"my-gpu-exporter-flags": text}).startswith(
        f"--my-gpu-exporter-flags: {text!r} is not a valid list of flags; use "
    )


@pytest.mark.parametrize(
    "flag",
    [
        *("metric-prefix=1x", "metric-prefix=a-b", "metrics-path=metrics", "metrics-path=/health"),
        *("listen-address=9400", "kubernetes-enabled=perhaps", "process-scan-interval=10", "dcgm-update-frequency=0s"),
        *("enable-energy-estimation=perhaps", "gpu-idle-power=a lot", "pod-resources-socket=kubelet.sock"),
        *("metric-retention=5", "metric-retention=9999999h"),
    ],
)
def test_an_invalid_flag_is_an_error_in_one_line(flag: str) -> None:
    name, _, value = flag.partition("=")
    message = complaint({"compat": "my-gpu-exporter", "my-gpu-exporter-flags": f"'--{flag}'"})
    assert message.startswith(f"--my-gpu-exporter-flags: --{name}: {value!r} is ")


@pytest.mark.parametrize(
    ("flag", "agents", "value"),
    [
        ("metric-retention=10m", "retention", "10m"),
        ("log-level=warn", "log-level", "warning"),
        ("pod-resources-socket=/x.sock", "pod-resources-socket", "/x.sock"),
    ],
)
def test_an_option_that_only_the_agent_decides_is_a_note_with_the_agents_flag(
    flag: str, agents: str, value: str
) -> None:
    name, _, text = flag.partition("=")
    (note,) = my_gpu(f"--{flag}").notes
    assert note.startswith(f"--my-gpu-exporter-flags: --{name} is {text!r}; ")
    assert f"--{agents} " in note
    assert my_gpu(f"--{flag}", **{agents: value}).notes == ()


@pytest.mark.parametrize(
    ("flag", "same", "agents"),
    [
        ("enable-energy-estimation=false", "enable-energy-estimation", "--energy-model"),
        ("gpu-idle-power=25", "gpu-idle-power=0.0", "--energy-policy"),
    ],
)
def test_an_option_with_one_supported_value_is_a_note(flag: str, same: str, agents: str) -> None:
    (note,) = my_gpu(f"--{flag}").notes
    assert agents in note
    assert my_gpu(f"--{same}").notes == ()


def test_an_unknown_log_level_means_info() -> None:
    assert my_gpu("--log-level=loud").notes == ()


@pytest.mark.parametrize(
    ("text", "retention_s", "notes"), [("30s", 30.0, 0), ("0", 0.0, 0), ("5m", 300.0, 0), ("1h", None, 1)]
)
def test_a_listener_can_only_shorten_the_retention(text: str, retention_s: float | None, notes: int) -> None:
    listener = my_gpu(f"--metric-retention={text}")
    assert (listener.retention_s, len(listener.notes)) == (retention_s, notes)


def test_on_a_simulated_host_the_socket_does_not_matter() -> None:
    assert my_gpu("--pod-resources-socket=/x.sock", source="sim").notes == ()


# ---------------------------------------------------------------------------- one port for two


@pytest.mark.parametrize(
    ("listen", "address", "why"),
    [
        ("127.0.0.1:9464", "0.0.0.0:9464", " (0.0.0.0 includes 127.0.0.1)"),
        ("0.0.0.0:9464", "127.0.0.1:9464", " (0.0.0.0 includes 127.0.0.1)"),
        ("127.0.0.1:9464", "[::]:9464", " (:: includes 127.0.0.1)"),
        ("0.0.0.0:9464", "[::]:9464", " (:: includes 0.0.0.0)"),
        ("0.0.0.0:9464", ":9464", ""),
    ],
)
def test_a_port_of_an_overlapping_address_is_refused(listen: str, address: str, why: str) -> None:
    flags = {"listen": listen, "compat": "my-gpu-exporter", "my-gpu-exporter-flags": f"--listen-address={address}"}
    assert complaint(flags) == (
        f"--compat: --listen and my-gpu-exporter both listen on port 9464{why}; "
        "use a port for each, for example my-gpu-exporter:9465"
    )


@pytest.mark.parametrize(("listen", "address"), [("[::1]:9464", "0.0.0.0:9464"), ("127.0.0.1:9464", "[::1]:9464")])
def test_addresses_that_do_not_overlap_may_share_a_port(listen: str, address: str) -> None:
    assert my_gpu(f"--listen-address={address}", listen=listen).address.port == 9464
