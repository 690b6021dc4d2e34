"""The GPUs that a container was granted, from its inspect document. Pure; accepts any JSON.

There are five ways to grant a container a GPU, which may be combined:

* ``docker run --gpus``: ``HostConfig.DeviceRequests`` for NVIDIA's hook;
* CDI: the same field with the driver ``cdi``, or a CDI name instead of a device;
* NVIDIA's runtime, which obeys ``NVIDIA_VISIBLE_DEVICES``;
* ``--device``: device nodes;
* ``--privileged``: every device of the host. That is access, not a grant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from otel_gpu.sources.base import Claim
from otel_gpu.sources.names.json_fields import array, entries, section, strings, text

_ALL: Final = Claim("all")
_POSSIBLE: Final = Claim("all", possible=True)

# Devices in NVIDIA_VISIBLE_DEVICES and similar: an index, a MIG instance by indices, a UUID or its beginning,
# MIG-GPU-<uuid>/<gi>/<ci> of drivers before 470.
_DEVICE: Final = re.compile(r"[0-9]{1,4}(?::[0-9]{1,4})?|(?:GPU|MIG)-[0-9A-Za-z/-]{1,100}")
# nvidia.com/gpu=0, =0:1, =all, =GPU-…; gpu0 and mig0:1 with --device-name-strategy=type-index.
# NVIDIA's tools also use management.nvidia.com, runtime.nvidia.com, k8s.device-plugin.nvidia.com.
_CDI: Final = re.compile(r"(?:[0-9a-z-]+\.)*nvidia\.com/(?:gpu|mig)=(?:gpu(?=[0-9])|mig(?=[0-9]))?(?P<device>.+)")
_NODE: Final = re.compile(r"nvidia[0-9]{1,4}")
_NO_DEVICES: Final = frozenset({"", "none", "void"})
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES="
# moby's drivers for NVIDIA and their capabilities (daemon/nvidia_linux.go). The last two drivers came with version 29.
_DRIVERS: Final = frozenset({"nvidia", "nvidia.cdi", "nvidia.runtime-hook"})
_CAPABILITIES: Final = frozenset({"gpu", "nvidia", "compute", "compat32", "graphics", "utility", "video", "display"})
_MAX_GPUS: Final = 64
"""No host has more. A larger count is ignored."""


def parse_claims(document: Mapping[str, object]) -> tuple[Claim, ...]:
    """The claims of the container, each once, in the order of the list above."""
    claims = dict.fromkeys(_claims(document))
    if _ALL in claims:
        return tuple(claim for claim in claims if claim in (_ALL, _POSSIBLE))
    return tuple(claims)


def _claims(document: Mapping[str, object]) -> Iterator[Claim]:
    host = section(document, "HostConfig")
    requests = [request for request in entries(host, "DeviceRequests") if _is_for_nvidia(request)]
    for request in requests:
        yield from _claims_of_request(request)
    # A request overrides the variable in this document: moby sets it again after that (setNvidiaGPUs in
    # daemon/nvidia_linux.go), CDI files of NVIDIA set it to "void" (NVIDIA/nvidia-container-toolkit#395), and so does
    # moby for --gpus 0 (moby/moby#48482; late 27 and 28; other versions set nothing). NVIDIA's hook obeys the last one.
    if not requests and (_is_nvidia(host.get("Runtime")) or _is_nvidia(document.get("OCIRuntime"))):  # Podman's
        yield from _claims_by_name(_visible_devices(section(document, "Config")))
    for device in entries(host, "Devices"):
        yield from _claims_of_node(device)
    if host.get("Privileged") is True:
        yield _POSSIBLE


def _is_for_nvidia(request: Mapping[str, object]) -> bool:
    """Whether moby grants NVIDIA's GPUs for this request (``handleDevice`` in daemon/devices.go)."""
    driver = request.get("Driver") or ""
    if driver == "cdi":
        return any(_CDI.fullmatch(name) for name in strings(request.get("DeviceIDs")))
    # With a named driver, capabilities do not matter; before version 29 they did, and without them nothing started.
    return text(driver) in _DRIVERS or (driver == "" and _wants_gpu(request.get("Capabilities")))


def _claims_of_request(request: Mapping[str, object]) -> Iterator[Claim]:
    ids, count = strings(request.get("DeviceIDs")), request.get("Count")
    if ids:
        yield from _claims_by_name(ids)
    elif isinstance(count, int) and count < 0:
        yield _ALL
    elif isinstance(count, int) and count <= _MAX_GPUS:
        yield from (Claim(str(index)) for index in range(count))


def _wants_gpu(capabilities: object) -> bool:
    """Capabilities are alternatives, each a list of which all must match (daemon/internal/capabilities)."""
    return any(
        isinstance(required, list) and all(text(name) in _CAPABILITIES for name in required)
        for required in array(capabilities)
    )


def _is_nvidia(runtime: object) -> bool:
    """``nvidia``, and ``nvidia-cdi``, ``nvidia-legacy``, ``nvidia-container-runtime``, as names or paths."""
    name = (text(runtime) or "").rpartition("/")[2]
    return name == "nvidia" or name.startswith("nvidia-")


def _visible_devices(config: Mapping[str, object]) -> Sequence[str]:
    """The devices in ``NVIDIA_VISIBLE_DEVICES``; the last one in the environment counts, as it does in the process."""
    variables = strings(config.get("Env"))
    values = [variable.removeprefix(_VISIBLE) for variable in variables if variable.startswith(_VISIBLE)]
    return values[-1].split(",") if values else ()


def _claims_by_name(devices: Sequence[str]) -> Iterator[Claim]:
    for device in devices:
        name = device.strip()
        if (cdi := _CDI.fullmatch(name)) is not None:
            name = cdi["device"]
        if name.lower() == "all":
            yield _ALL
        elif name.lower() not in _NO_DEVICES and _DEVICE.fullmatch(name):
            yield Claim(name)


def _claims_of_node(device: Mapping[str, object]) -> Iterator[Claim]:
    on_host, inside = text(device.get("PathOnHost")) or "", text(device.get("PathInContainer")) or ""
    if _CDI.fullmatch(on_host):  # podman run --device nvidia.com/gpu=0
        yield from _claims_by_name([on_host])
        return
    # As the path on the host Podman gives any path with the same device numbers. The path inside counts too.
    for path in (on_host, inside):
        name = path.rpartition("/")[2]
        if _NODE.fullmatch(name):
            yield Claim(name)
            return
