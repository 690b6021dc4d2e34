from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpu.compat.exporters import EXPORTERS
from otel_gpu.compat.listener import Listener
from otel_gpu.config import Value, load, settle
from otel_gpu.errors import UsageError
from otel_gpu.settings_check import check_exports
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
    expected = Listener("my-gpu-exporter", Address("0.0.0.0", 9500), "/m", 2.0, "gpu_", kubernetes=False)
    assert told == replace(expected, retention_s=300.0)


def test_they_are_read_as_go_reads_them() -> None:
    assert my_gpu("--kubernetes-enabled").kubernetes
    assert my_gpu("-kubernetes-enabled -metric-prefix x") == my_gpu("--metric-prefix=x")
    assert not my_gpu("--kubernetes-enabled=false --enable-energy-estimation").kubernetes
    assert my_gpu("--metric-prefix=a --metric-prefix=b").prefix == "b_"
    assert my_gpu("--metric-retention=1m0.5s").retention_s == 60.5


def test_they_stand_in_the_file_too(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text('compat: my-gpu-exporter\nmy-gpu-exporter-flags: "--metric-prefix=x"\n', encoding="utf-8")
    assert only({"config": str(file)}).prefix == "x_"
    file.write_text('compat: my-gpu-exporter\nmy-gpu-exporter-flags: "--whatever=1"\n', encoding="utf-8")
    assert complaint({"config": str(file)}).startswith(
        "my-gpu-exporter-flags: --whatever is no flag of my-gpu-exporter; allowed is --dcgm-update-frequency, --process"
    )


@pytest.mark.parametrize("compat", ["", "gpu-inference"])
def test_flags_of_an_exporter_that_nobody_stands_in_for_are_refused_and_not_ignored(compat: str) -> None:
    loaded = load({"compat": compat, "my-gpu-exporter-flags": "--metric-prefix=x"}, {})
    with pytest.raises(UsageError) as caught:
        check_exports(loaded)
    assert str(caught.value) == (
        "--my-gpu-exporter-flags: my-gpu-exporter-flags is '--metric-prefix=x'; "
        "allowed is nothing without my-gpu-exporter in compat: --compat my-gpu-exporter"
    )
    check_exports(load({"compat": "my-gpu-exporter", "my-gpu-exporter-flags": "--metric-prefix=x"}, {}))


@pytest.mark.parametrize(
    "text",
    ["metric-prefix=x", "--metric-prefix", "--a='", "--=x", "-", "--", "---a=1", "--kubernetes-enabled false"],
)
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
        "enable-energy-estimation=perhaps",
        "gpu-idle-power=a lot",
        "metric-retention=5",
        "metric-retention=9999999h",
        "pod-resources-socket=kubelet.sock",
    ],
)
def test_a_bad_flag_is_told_in_one_line(flag: str) -> None:
    name, _, value = flag.partition("=")
    told = complaint({"compat": "my-gpu-exporter", "my-gpu-exporter-flags": f"'--{flag}'"})
    assert told.startswith(f"my-gpu-exporter-flags: --{name} is {value!r}; allowed is ")


@pytest.mark.parametrize(
    ("flag", "agents", "value"),
    [
        ("metric-retention=10m", "retention", "10m"),
        ("log-level=warn", "log-level", "warning"),
        ("pod-resources-socket=/x.sock", "pod-resources-socket", "/x.sock"),
    ],
)
def test_what_the_agent_decides_for_all_stops_nobody_and_is_told_with_the_agents_own_flag(
    flag: str, agents: str, value: str
) -> None:
    name, _, text = flag.partition("=")
    (note,) = my_gpu(f"--{flag}").notes
    assert note.startswith(f"my-gpu-exporter-flags: --{name} is {text!r}; ")
    assert f"--{agents} " in note
    assert my_gpu(f"--{flag}", **{agents: value}).notes == ()


@pytest.mark.parametrize(
    ("flag", "same", "agents"),
    [
        ("enable-energy-estimation=false", "enable-energy-estimation", "--energy-model"),
        ("gpu-idle-power=25", "gpu-idle-power=0.0", "--energy-policy"),
    ],
)
def test_what_is_always_so_stops_nobody_either(flag: str, same: str, agents: str) -> None:
    (note,) = my_gpu(f"--{flag}").notes
    assert agents in note
    assert my_gpu(f"--{same}").notes == ()


def test_a_level_that_is_none_is_info_there_too() -> None:
    assert my_gpu("--log-level=loud").notes == ()


@pytest.mark.parametrize(
    ("text", "told_s", "notes"), [("30s", 30.0, 0), ("0", 0.0, 0), ("5m", 300.0, 0), ("1h", None, 1)]
)
def test_a_shorter_retention_is_the_listeners_own_and_a_longer_one_is_the_agents(
    text: str, told_s: float | None, notes: int
) -> None:
    told = my_gpu(f"--metric-retention={text}")
    assert (told.retention_s, len(told.notes)) == (told_s, notes)


def test_on_a_simulated_host_no_socket_is_asked_and_none_is_demanded() -> None:
    assert my_gpu("--pod-resources-socket=/x.sock", source="sim").notes == ()


# ---------------------------------------------------------------------------- one port for two


@pytest.mark.parametrize(
    ("listen", "address", "why"),
    [
        ("127.0.0.1:9464", "0.0.0.0:9464", " (0.0.0.0 is every address, 127.0.0.1 too)"),
        ("0.0.0.0:9464", "127.0.0.1:9464", " (0.0.0.0 is every address, 127.0.0.1 too)"),
        ("127.0.0.1:9464", "[::]:9464", " (:: is every address, 127.0.0.1 too)"),
        ("0.0.0.0:9464", "[::]:9464", " (:: is every address, 0.0.0.0 too)"),
        ("0.0.0.0:9464", ":9464", ""),
    ],
)
def test_a_port_that_the_agent_has_on_another_address_too_is_refused_by_its_name(
    listen: str, address: str, why: str
) -> None:
    flags = {"listen": listen, "compat": "my-gpu-exporter", "my-gpu-exporter-flags": f"--listen-address={address}"}
    assert complaint(flags) == (
        f"--compat: compat is 'my-gpu-exporter'; --listen and my-gpu-exporter would both listen on port 9464{why}; "
        "allowed is a port for each, such as my-gpu-exporter:9465"
    )


@pytest.mark.parametrize(("listen", "address"), [("[::1]:9464", "0.0.0.0:9464"), ("127.0.0.1:9464", "[::1]:9464")])
def test_addresses_that_do_not_meet_can_have_one_port(listen: str, address: str) -> None:
    assert my_gpu(f"--listen-address={address}", listen=listen).address.port == 9464


# ---------------------------------------------------------------------------- in the file


@pytest.mark.parametrize("text", ["[gpu-inference, 'dcgm-exporter:9401']", "\n- gpu-inference\n- dcgm-exporter:9401"])
def test_in_the_file_names_may_stand_in_a_list(text: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(f"compat: {text}\n", encoding="utf-8")
    told = load({"config": str(file)}, {}).config.compat
    assert [str(each) for each in told] == ["gpu-inference:9201", "dcgm-exporter:9401"]


def test_a_list_of_anything_else_is_refused_with_the_key(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("compat:\n- gpu-inference: 9201\n", encoding="utf-8")
    assert complaint({"config": str(file)}).startswith(f"{file}:1: compat is no word and no list of words")
