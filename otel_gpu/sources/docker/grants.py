"""From an engine's description of a container to the GPUs it was given. Pure, total.

There are five ways to give a container a GPU, and one may be used beside another:

* ``docker run --gpus``: ``HostConfig.DeviceRequests`` for NVIDIA's hook;
* CDI: the same field with the driver ``cdi``, or a CDI name in the place of a device;
* NVIDIA's runtime, which obeys ``NVIDIA_VISIBLE_DEVICES``;
* ``--device``: the nodes themselves;
* ``--privileged``, which gives every device of the host without meaning a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from otel_gpu.sources.base import Claim
from otel_gpu.sources.docker.documents import entries, section, text

_EVERY: Final = Claim("all")
_POSSIBLE: Final = Claim("all", possible=True)

# What NVIDIA_VISIBLE_DEVICES and its relatives may name: an index, a MIG instance by indices, a UUID or its beginning,
# MIG-GPU-<uuid>/<gi>/<ci> of drivers before 470.
_DEVICE: Final = re.compile(r"[0-9]{1,4}(?::[0-9]{1,4})?|(?:GPU|MIG)-[0-9A-Za-z/-]{1,100}")
# nvidia.com/gpu=0, =0:1, =all, =GPU-…; gpu0 and mig0:1 where names were made with --device-name-strategy=type-index.
# NVIDIA's tools write further vendors before theirs: management.nvidia.com, runtime.nvidia.com, k8s.device-plugin.….
_CDI: Final = re.compile(r"(?:[0-9a-z-]+\.)*nvidia\.com/(?:gpu|mig)=(?:gpu(?=[0-9])|mig(?=[0-9]))?(?P<device>.+)")
_NODE: Final = re.compile(r"nvidia[0-9]{1,4}")
_NO_DEVICES: Final = frozenset({"", "none", "void"})
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES="
# moby's drivers for NVIDIA and what they are capable of (daemon/nvidia_linux.go). The last two are of version 29.
_DRIVERS: Final = frozenset({"nvidia", "nvidia.cdi", "nvidia.runtime-hook"})
_CAPABILITIES: Final = frozenset({"gpu", "nvidia", "compute", "compat32", "graphics", "utility", "video", "display"})
_MOST_GPUS: Final = 64
"""More are in no host. A count beyond that is not believed."""


def parse_claims(document: Mapping[str, object]) -> tuple[Claim, ...]:
    """The GPUs that the container of this inspect document was given, each once, in the order of the ways above."""
    claims = dict.fromkeys(_claims(document))
    if _EVERY in claims:
        return tuple(claim for claim in claims if claim in (_EVERY, _POSSIBLE))
    return tuple(claims)


def _claims(document: Mapping[str, object]) -> Iterator[Claim]:
    host = section(document, "HostConfig")
    requests = [request for request in entries(host, "DeviceRequests") if _is_for_gpus(request)]
    for request in requests:
        yield from _requested(request)
    # Whoever serves a request sets the variable anew, after the one that is told here, and NVIDIA's hook and runtime
    # obey the last. moby sets what was requested (setNvidiaGPUs in daemon/nvidia_linux.go); NVIDIA's CDI files set
    # "void" (NVIDIA/nvidia-container-toolkit#395). For --gpus 0 moby sets "void" too (moby/moby#48482; late 27 and 28);
    # other versions set nothing then.
    if not requests and (_is_nvidia(host.get("Runtime")) or _is_nvidia(document.get("OCIRuntime"))):  # Podman's
        yield from _named(_visible_devices(section(document, "Config")))
    for device in entries(host, "Devices"):
        yield from _device_node(device)
    if host.get("Privileged") is True:
        yield _POSSIBLE


def _is_for_gpus(request: Mapping[str, object]) -> bool:
    """Whether moby serves this with NVIDIA's GPUs (``handleDevice`` in daemon/devices.go)."""
    driver = request.get("Driver") or ""
    if driver == "cdi":
        return any(_CDI.fullmatch(name) for name in _texts(request.get("DeviceIDs")))
    # A driver that is named is not asked for capabilities; before version 29 it was, and without them nothing started.
    return text(driver) in _DRIVERS or (driver == "" and _wants_gpu(request.get("Capabilities")))


def _requested(request: Mapping[str, object]) -> Iterator[Claim]:
    ids, count = _texts(request.get("DeviceIDs")), request.get("Count")
    if ids:
        yield from _named(ids)
    elif isinstance(count, int) and count < 0:
        yield _EVERY
    elif isinstance(count, int) and count <= _MOST_GPUS:
        yield from (Claim(str(index)) for index in range(count))


def _wants_gpu(capabilities: object) -> bool:
    """Capabilities are a list of lists: any of these, where each is all of those (daemon/internal/capabilities)."""
    if not isinstance(capabilities, list):
        return False
    return any(isinstance(every, list) and all(text(one) in _CAPABILITIES for one in every) for every in capabilities)


def _is_nvidia(runtime: object) -> bool:
    """``nvidia``, and ``nvidia-cdi``, ``nvidia-legacy``, ``nvidia-container-runtime``, as names or paths."""
    name = (text(runtime) or "").rpartition("/")[2]
    return name == "nvidia" or name.startswith("nvidia-")


def _visible_devices(config: Mapping[str, object]) -> Sequence[str]:
    """The value of ``NVIDIA_VISIBLE_DEVICES``; the last counts, as it does in the process."""
    values = [one.removeprefix(_VISIBLE) for one in _texts(config.get("Env")) if one.startswith(_VISIBLE)]
    return values[-1].split(",") if values else ()


def _named(devices: Sequence[str]) -> Iterator[Claim]:
    for device in devices:
        name = device.strip()
        if (cdi := _CDI.fullmatch(name)) is not None:
            name = cdi["device"]
        if name.lower() == "all":
            yield _EVERY
        elif name.lower() not in _NO_DEVICES and _DEVICE.fullmatch(name):
            yield Claim(name)


def _device_node(device: Mapping[str, object]) -> Iterator[Claim]:
    on_host, inside = text(device.get("PathOnHost")) or "", text(device.get("PathInContainer")) or ""
    if _CDI.fullmatch(on_host):  # podman run --device nvidia.com/gpu=0
        yield from _named([on_host])
        return
    # Podman tells any path with the same device numbers as the one on the host, so the one inside counts too.
    for path in (on_host, inside):
        name = path.rpartition("/")[2]
        if _NODE.fullmatch(name):
            yield Claim(name)
            return


def _texts(value: object) -> Sequence[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else ()
