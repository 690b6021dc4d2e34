"""Each way to grant a GPU to a container, as engines describe it."""

from __future__ import annotations

from typing import Any

import pytest

from otel_gpu.sources.base import Claim
from otel_gpu.sources.names.docker.claims import parse_claims

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
