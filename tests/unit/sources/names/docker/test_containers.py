"""Inspect documents, list entries and events of an engine; any JSON is accepted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import Claim
from otel_gpu.sources.names.docker.containers import (
    Container,
    ContainerParser,
    Event,
    Listed,
    parse_claims,
    parse_event,
    parse_listed,
    parse_max_uptime_s,
    parse_time,
)
from tests.docker_api import DockerApi, container_id

ID = container_id(1)
READER = ContainerParser("docker", frozenset({"team", "tier"}))
KUBERNETES = {
    "io.kubernetes.pod.name": "trainer-0",
    "io.kubernetes.pod.namespace": "research",
    "io.kubernetes.pod.uid": "0c3e1f7a-8f4e-4a53-b9e2-5d6f1c2b3a49",
    "io.kubernetes.container.name": "main",
}


def described(name: str = "llm", **changes: Any) -> Container:
    """The parsed container of this name."""
    api = DockerApi()
    api.run(1, name, **changes)
    return READER.parse_container(ID, api.containers[ID])


def names_of(container: Container) -> WorkloadNames:
    assert container.info is not None
    return container.info.names


def test_a_container_has_its_name_image_runtime_and_start() -> None:
    known = described("llm").info
    assert known is not None
    assert known.ref == WorkloadRef(WorkloadKind.CONTAINER, ID, runtime="docker")
    assert known.names == WorkloadNames(container="llm", image="vllm:1", runtime="docker")
    assert known.running
    assert known.since_s == pytest.approx(1767323045.678901)


def test_only_configured_labels_are_read_in_the_order_of_their_keys() -> None:
    labels = {"tier": "gold", "team": "nlp", "secret": "s3cr3t"}
    assert names_of(described(Config={"Labels": labels})).extra == (
        ("container.label.team", "nlp"),
        ("container.label.tier", "gold"),
    )


def test_names_in_the_kubelets_labels_are_apart_from_those_of_the_engine() -> None:
    """A user who may start a container may set these labels: its cgroup decides whether they count."""
    container = described("k8s_main_trainer-0_research_0c3e_0", Config={"Labels": KUBERNETES})
    assert names_of(container) == WorkloadNames(
        container="k8s_main_trainer-0_research_0c3e_0", image="vllm:1", runtime="docker"
    )
    assert container.info is not None
    assert container.info.ref.pod_uid is None
    assert container.info.labelled == WorkloadNames(
        container="main", pod="trainer-0", namespace="research", pod_uid=KUBERNETES["io.kubernetes.pod.uid"]
    )


def test_a_container_without_the_kubelets_labels_claims_no_pod() -> None:
    info = described(Config={"Labels": {"io.kubernetes.container.name": "main"}}).info
    assert info is not None
    assert info.labelled is None


@pytest.mark.parametrize(
    "label", [{"io.kubernetes.docker.type": "podsandbox"}, {"io.kubernetes.container.name": "POD"}]
)
def test_a_pods_sandbox_is_not_a_workload(label: dict[str, str]) -> None:
    assert described(Config={"Labels": KUBERNETES | label}) == Container(None)
    outside = WorkloadRef(WorkloadKind.CONTAINER, ID, runtime="docker")
    document = {"Name": "/miner", "Config": {"Labels": KUBERNETES | label}}
    parser = ContainerParser("docker")
    assert parser.parse_container(ID, document, outside).info is not None, "its cgroup is no pod's"
    assert parser.parse_container(ID, document, replace(outside, pod_uid="u")).info is None


@pytest.mark.parametrize("name", ['a"b', "a\nb", "🦙 llama", "<script>alert(1)</script>", "a\\b", "//x"])
def test_a_name_may_have_any_characters(name: str) -> None:
    container = described(name)
    assert names_of(container).container == name
    assert container.notes == ()


def test_a_long_label_is_cut_and_reported() -> None:
    container = described(Config={"Labels": {"team": "x" * 10_240}})
    [(_, value)] = names_of(container).extra
    assert value == "x" * 125 + "…"
    [note] = container.notes
    assert note == "container 000000000000: label team has 10,240 bytes; only the first 125 are exported"


def test_a_lone_surrogate_is_replaced_and_reported() -> None:
    container = described(Config={"Image": json.loads(r'"a\ud800"')})
    assert names_of(container).image == "a?"
    assert len(container.notes) == 1


def test_values_of_another_type_are_skipped_and_reported() -> None:
    container = described("llm", Config={"Image": 7, "Labels": {"team": ["nlp"], "tier": "gold"}}, HostConfig=None)
    names = names_of(container)
    assert (names.container, names.image) == ("llm", None)
    assert names.extra == (("container.label.tier", "gold"),)
    assert container.notes == (
        "container 000000000000: Image is not text",
        "container 000000000000: label team is not text",
    )


@pytest.mark.parametrize("document", [None, [], "text", 7])
def test_a_document_that_is_not_an_object_is_reported(document: object) -> None:
    [note] = READER.parse_container(ID, document).notes
    assert "not a JSON object" in note


def test_a_container_that_waits_for_a_restart_does_not_run() -> None:
    known = described(State={"Running": True, "Restarting": True}).info
    assert known is not None
    assert not known.running


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [
        ("2026-01-02T03:04:05.678901234Z", 1767323045.678901),
        ("2026-01-02T05:04:05.678901234+02:00", 1767323045.678901),
        ("2026-01-02T03:04:05Z", 1767323045.0),
        ("0001-01-01T00:00:00Z", None),
        ("9999-99-99T00:00:00Z", None),
        ("yesterday", None),
        ("", None),
        (None, None),
        (1767323045, None),
    ],
)
def test_times_are_rfc_3339_and_gos_zero_time_is_never(text: object, unix_s: float | None) -> None:
    assert parse_time(text) == (None if unix_s is None else pytest.approx(unix_s, abs=2e-6))


def test_a_list_entry_has_the_containers_name_not_that_of_a_link() -> None:
    line = {"Id": ID, "Names": ["/web/db", "/db"], "State": "running", "Status": "Up 5 minutes (healthy)"}
    assert parse_listed(line) == Listed(ID, "db", running=True, max_uptime_s=360.0)


def test_a_list_entry_of_a_restarting_container_does_not_run() -> None:
    line = parse_listed({"Id": ID, "Names": ["/db"], "State": "restarting", "Status": "Restarting (1) 3 seconds ago"})
    assert line == Listed(ID, "db", running=False, max_uptime_s=None)


@pytest.mark.parametrize("line", [None, 1, [], {}, {"Id": None}, {"Id": "../../info"}, {"Id": "abc"}])
def test_a_list_entry_without_an_id_is_skipped(line: object) -> None:
    assert parse_listed(line) is None


@pytest.mark.parametrize(
    ("status", "at_most_s"),
    [
        ("Up Less than a second", 1.0),
        ("Up 1 second", 2.0),
        ("Up 59 seconds", 60.0),
        ("Up About a minute", 120.0),
        ("Up 59 minutes (unhealthy)", 3600.0),
        ("Up About an hour (Paused)", 7200.0),
        ("Up 47 hours", 48 * 3600.0),
        ("Up 13 days", 14 * 86_400.0),
        ("Up 2 weeks", 21 * 86_400.0),
        ("Up 3 months", 120 * 86_400.0),
        ("Up 2 years", 3 * 365 * 86_400.0),
        ("Exited (0) 5 minutes ago", None),
        ("Up for ages", None),
        (None, None),
        (5, None),
    ],
)
def test_an_uptime_in_words_is_an_upper_bound(status: object, at_most_s: float | None) -> None:
    assert parse_max_uptime_s(status) == at_most_s


def test_an_event_has_an_action_a_container_and_its_name() -> None:
    actor = {"ID": ID, "Attributes": {"name": "new", "oldName": "/old"}}
    line = json.dumps({"Type": "container", "Action": "rename", "Actor": actor}).encode()
    assert parse_event(line) == Event("rename", ID, "new")


def test_an_event_in_the_old_form_is_parsed() -> None:
    assert parse_event(json.dumps({"status": "start", "id": ID}).encode()) == Event("start", ID, None)


@pytest.mark.parametrize(
    "line", [b'{"Type": "conta', b"", b"null", b"[]", b"<html>", b"\xff\xfe", b"[" * 100_000, b'{"Action": "start"}']
)
def test_an_invalid_event_is_skipped(line: bytes) -> None:
    assert parse_event(line) is None


@pytest.mark.parametrize("section", [None, 7, "text", [1], {}, {"Running": [], "Devices": 7, "Env": {}}])
def test_an_invalid_section_does_not_lose_the_others(section: Any) -> None:
    assert names_of(described("llm", HostConfig=None, State=section)).container == "llm"
    assert names_of(described("llm", HostConfig=section)).image == "vllm:1"


# ---------------------------------------------------------------------------- GPUs granted


GPU = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
MIG = "MIG-8b1e3c5f-0c2e-5a4e-9f43-1c5a9f1c2d3e"
POSSIBLE = Claim("all", possible=True)


def request(**fields: Any) -> dict[str, Any]:
    """A device request of ``docker run --gpus``."""
    made = {"Driver": "", "Count": 0, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}} | fields
    return {"HostConfig": {"DeviceRequests": [made]}}


def runtime(value: str | None, name: str = "nvidia") -> dict[str, Any]:
    """A container with this runtime and value of NVIDIA_VISIBLE_DEVICES."""
    env = ["PATH=/bin"] + ([] if value is None else [f"NVIDIA_VISIBLE_DEVICES={value}"])
    return {"HostConfig": {"Runtime": name}, "Config": {"Env": env}}


def devices(*paths: tuple[str, str]) -> dict[str, Any]:
    """A container with ``--device HOST:CONTAINER``."""
    return {"HostConfig": {"Devices": [{"PathOnHost": host, "PathInContainer": inside} for host, inside in paths]}}


@pytest.mark.parametrize(
    ("document", "devices_given"),
    [
        (request(Count=-1), ["all"]),
        (request(Count=2), ["0", "1"]),
        (request(DeviceIDs=["0", "3"]), ["0", "3"]),
        (request(DeviceIDs=[GPU, "GPU-8dcd"]), [GPU, "GPU-8dcd"]),
        (request(DeviceIDs=["0:0", MIG]), ["0:0", MIG]),
        (request(DeviceIDs=[f"MIG-{GPU}/1/0"]), [f"MIG-{GPU}/1/0"]),
        (request(DeviceIDs=["all"]), ["all"]),
        (request(Driver="nvidia", Count=-1), ["all"]),
        (request(Count=-1, Capabilities=[["tpu"], ["compute", "gpu"]]), ["all"]),
        (request(Count=-1, Capabilities=[["compute"]]), ["all"]),
        (request(Count=-1, Capabilities=[["tpu"]]), []),
        (request(Count=-1, Capabilities=[["gpu", "tpu"]]), []),
        (request(Count=-1, Capabilities=None), []),
        (request(Driver="nvidia", Count=-1, Capabilities=None), ["all"]),
        (request(Driver="nvidia.cdi", DeviceIDs=["nvidia.com/gpu=1"], Capabilities=None), ["1"]),
        (request(Driver="nvidia.runtime-hook", Count=1, Capabilities=None), ["0"]),
        (request(Driver="amd", Count=-1), []),
        (request(Count=0), []),
        (request(Count=10**9), []),
    ],
)
def test_device_requests_grant_what_nvidias_hook_grants(document: dict[str, Any], devices_given: list[str]) -> None:
    assert parse_claims(document) == tuple(Claim(device) for device in devices_given)


@pytest.mark.parametrize("name", ["nvidia", "runc"])
@pytest.mark.parametrize(
    ("requested", "devices_given"),
    [
        (request(DeviceIDs=["1"]), ["1"]),
        (request(Count=1), ["0"]),
        (request(Count=0), []),
        (request(Driver="cdi", DeviceIDs=["nvidia.com/gpu=1"], Capabilities=None), ["1"]),
    ],
)
def test_a_device_request_overrides_the_environment(
    requested: dict[str, Any], devices_given: list[str], name: str
) -> None:
    document = runtime("all", name)
    document["HostConfig"] |= requested["HostConfig"]
    assert parse_claims(document) == tuple(Claim(device) for device in devices_given)


@pytest.mark.parametrize(
    "other",
    [
        request(Driver="amd", Count=-1),
        request(Count=-1, Capabilities=[["tpu"]]),
        request(Driver="cdi", DeviceIDs=["vendor.com/net=0"], Capabilities=None),
    ],
)
def test_a_request_for_other_devices_does_not_override_the_environment(other: dict[str, Any]) -> None:
    document = runtime("0")
    document["HostConfig"] |= other["HostConfig"]
    assert parse_claims(document) == (Claim("0"),)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("nvidia.com/gpu=0", "0"),
        ("nvidia.com/gpu=all", "all"),
        (f"nvidia.com/gpu={GPU}", GPU),
        ("nvidia.com/gpu=0:1", "0:1"),
        (f"nvidia.com/mig={MIG}", MIG),
        ("nvidia.com/gpu=gpu0", "0"),
        ("nvidia.com/gpu=mig0:1", "0:1"),
        ("management.nvidia.com/gpu=all", "all"),
        (f"k8s.device-plugin.nvidia.com/gpu={GPU}", GPU),
        ("amd.com/gpu=0", None),
        ("vendor.com/net=0", None),
        ("nvidia.com/gds=all", None),
        ("nvidia.com/gpu=", None),
    ],
)
def test_cdi_names_are_read_from_requests_devices_and_the_environment(name: str, device: str | None) -> None:
    expected = () if device is None else (Claim(device),)
    assert parse_claims(request(Driver="cdi", DeviceIDs=[name], Capabilities=None)) == expected
    assert parse_claims(runtime(name)) == expected
    assert parse_claims(devices((name, name))) == expected


@pytest.mark.parametrize(
    ("value", "devices_given"),
    [
        ("all", ["all"]),
        ("none", []),
        ("void", []),
        ("", []),
        (None, []),
        ("0,1", ["0", "1"]),
        (f"0, {GPU},0:1,{MIG}", ["0", GPU, "0:1", MIG]),
        ("1,1,nvidia.com/gpu=1", ["1"]),
        ("0,all", ["all"]),
        ("nonsense,2", ["2"]),
    ],
)
def test_with_nvidias_runtime_the_environment_grants_gpus(value: str | None, devices_given: list[str]) -> None:
    assert parse_claims(runtime(value)) == tuple(Claim(device) for device in devices_given)


def test_of_several_values_in_the_environment_the_last_one_counts() -> None:
    """As in the process. CUDA's base images set it to ``all``."""
    document = runtime("all")
    document["Config"]["Env"].append("NVIDIA_VISIBLE_DEVICES=0")
    assert parse_claims(document) == (Claim("0"),)


@pytest.mark.parametrize("name", ["nvidia-cdi", "nvidia-legacy", "/usr/bin/nvidia-container-runtime"])
def test_nvidias_runtime_has_several_names(name: str) -> None:
    assert parse_claims(runtime("0", name)) == (Claim("0"),)


def test_podmans_runtime_is_beside_the_host_config() -> None:
    document = runtime("0", "oci") | {"OCIRuntime": "/usr/bin/nvidia-container-runtime"}
    assert parse_claims(document) == (Claim("0"),)


@pytest.mark.parametrize("name", ["runc", "io.containerd.runc.v2", "crun", "kata", "not-nvidia"])
def test_the_variable_without_the_runtime_grants_nothing(name: str) -> None:
    """CUDA's base images set it to ``all``."""
    assert parse_claims(runtime("all", name)) == ()


@pytest.mark.parametrize(
    ("paths", "node"),
    [
        (("/dev/nvidia0", "/dev/nvidia0"), "nvidia0"),
        (("/dev/nvidia3", "/dev/nvidia0"), "nvidia3"),
        (("/tmp/x/nvidia1", "/dev/nvidia0"), "nvidia1"),
        (("/dev/null", "/dev/nvidia2"), "nvidia2"),
        (("/dev/nvidiactl", "/dev/nvidiactl"), None),
        (("/dev/nvidia-uvm", "/dev/nvidia-uvm"), None),
        (("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap1"), None),
        (("/dev/dri/card0", "/dev/dri/card0"), None),
    ],
)
def test_a_device_node_grants_the_gpu_with_that_minor_number(paths: tuple[str, str], node: str | None) -> None:
    assert parse_claims(devices(paths)) == (() if node is None else (Claim(node),))


def test_a_privileged_container_has_possible_access_to_all_gpus() -> None:
    assert parse_claims({"HostConfig": {"Privileged": True}}) == (POSSIBLE,)
    assert parse_claims({"HostConfig": {"Privileged": 1}}) == ()


def test_several_ways_add_up_and_all_includes_the_others() -> None:
    both = devices(("/dev/nvidia1", "/dev/nvidia1"))
    both["HostConfig"] |= request(DeviceIDs=["0"])["HostConfig"] | {"Privileged": True}
    assert parse_claims(both) == (Claim("0"), Claim("nvidia1"), POSSIBLE)
    both["HostConfig"] |= request(Count=-1)["HostConfig"]
    assert parse_claims(both) == (Claim("all"), POSSIBLE)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"HostConfig": None},
        {"HostConfig": {"DeviceRequests": "all", "Devices": 7, "Runtime": 3, "Privileged": "yes"}},
        {"HostConfig": {"DeviceRequests": [None, 1, {"Driver": 1, "Count": "-1", "Capabilities": [["gpu"]]}]}},
        {"HostConfig": {"DeviceRequests": [{"Count": -1, "Capabilities": [None, "gpu", [None], [["gpu"], {}]]}]}},
        {"HostConfig": {"DeviceRequests": [{"Count": -1, "Driver": ["nvidia"]}, {"Count": -1, "Driver": {"a": 1}}]}},
        {"HostConfig": {"Runtime": "nvidia"}, "Config": {"Env": [None, 1, {}]}},
        {"HostConfig": {"Devices": [{}, {"PathOnHost": None, "PathInContainer": []}]}},
    ],
)
def test_fields_of_other_types_grant_nothing(document: dict[str, Any]) -> None:
    assert parse_claims(document) == ()
