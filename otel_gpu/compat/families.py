"""The table of metrics of other exporters that the agent can serve. docs/compat.md states the differences.

Names, labels and units are those of each exporter's documentation; HELP texts are the agent's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otel_gpu.compat import fields as f
from otel_gpu.compat import shares as s
from otel_gpu.compat.fields import (
    container_memories,
    container_processes,
    containers,
    devices,
    living_processes,
    process_energies,
    processes,
)
from otel_gpu.compat.schema import Aggregation, Family, FamilyType

_GAUGE, _COUNTER = FamilyType.GAUGE, FamilyType.COUNTER

# ---------------------------------------------------------------------------- gpu-inference

_GPU: Final = (("gpu", f.gpu_index),)
_CONTAINER: Final = (("container_name", f.container_name), ("container_id", f.short_container_id))

_GPU_INFERENCE: Final[tuple[Family[Any], ...]] = (
    Family("gpu_memory_total_bytes", _GAUGE, "Memory of the GPU.", devices, _GPU, f.memory_total),
    Family("gpu_memory_used_bytes", _GAUGE, "Memory in use, not reserved.", devices, _GPU, f.memory_used),
    Family("gpu_memory_free_bytes", _GAUGE, "Memory free.", devices, _GPU, f.memory_free),
    Family("gpu_memory_known_bytes", _GAUGE, "Memory in use, listed.", devices, _GPU, f.memory_known),
    Family("gpu_memory_unknown_bytes", _GAUGE, "Memory in use, not listed.", devices, _GPU, f.memory_unknown),
    Family(
        "container_gpu_memory_bytes", _GAUGE, "Memory of a container by method.",
        container_memories, (*_CONTAINER, *_GPU, ("method", f.method)), f.container_memory,
    ),
    Family(
        "container_gpu_detected", _GAUGE, "1 for each container that uses a GPU or was granted one.",
        containers, _CONTAINER, f.present, Aggregation.MAX,
    ),
    Family("gpu_inference_active", _GAUGE, "1 if memory in use is not listed.", devices, _GPU, f.inference_active),
)  # fmt: skip

# ---------------------------------------------------------------------------- my-gpu-exporter

_POD_PROCESS: Final = (
    ("pid", f.pid),
    ("gpu", f.gpu_index),
    ("process_name", f.process_name),
    ("pod", f.pod),
    ("namespace", f.namespace),
    ("container", f.pod_container),
    ("pod_uid", f.pod_uid),
    ("container_id", f.container_id),
)

_MY_GPU: Final[tuple[Family[Any], ...]] = (
    Family("energy_joules", _COUNTER, "Energy of a process.", processes, _POD_PROCESS, f.process_joules),
    Family(
        "energy_joules_total", _COUNTER, "Energy of a process, measured or estimated.",
        process_energies, (*_POD_PROCESS, ("energy_estimated", f.estimated)), f.process_joules_by_method,
    ),
    Family("sm_utilization_ratio", _GAUGE, "SM share, 0 to 1.", processes, _POD_PROCESS, f.sm_ratio),
    Family(
        "memory_utilization_ratio", _GAUGE, "Share of time with memory traffic, 0 to 1.",
        processes, _POD_PROCESS, f.bandwidth_ratio,
    ),
    Family("memory_used_bytes", _GAUGE, "Memory of a process.", processes, _POD_PROCESS, f.process_memory),
    Family(
        "start_time_seconds", _GAUGE, "Start of a process, Unix time.",
        processes, _POD_PROCESS, f.start_time, Aggregation.MAX,
    ),
    Family(
        "active", _GAUGE, "1 while it runs, 0 once it has ended.",
        processes, _POD_PROCESS, f.active, Aggregation.MAX,
    ),
    Family("gpu_energy_joules_total", _COUNTER, "Energy of all processes.", devices, _GPU, f.attributed_joules),
    Family("gpu_process_count", _GAUGE, "Processes on the GPU.", devices, _GPU, f.process_count),
)  # fmt: skip

# ---------------------------------------------------------------------------- gpu-idle-exporter

_IDLE_PROCESS: Final = (("gpu", f.gpu_index), ("pid", f.pid), ("process", f.process_name))
_IDLE_DEVICE: Final = (("gpu", f.gpu_index), ("model", f.gpu_name), ("uuid", f.gpu_uuid))

_GPU_IDLE: Final[tuple[Family[Any], ...]] = (
    Family(
        "process_compute_utilization_percent", _GAUGE, "SM share of a process.",
        living_processes, _IDLE_PROCESS, f.sm_percent,
    ),
    Family(
        "process_memory_used_bytes", _GAUGE, "Memory of a process.",
        living_processes, _IDLE_PROCESS, f.process_memory,
    ),
    Family(
        "process_idle_seconds", _GAUGE, "Time without work, 0 while it works, absent if unknown.",
        living_processes, _IDLE_PROCESS, f.idle_seconds, Aggregation.MAX,
    ),
    Family(
        "process_idle_memory_bytes", _GAUGE, "Memory it holds while idle, absent if unknown.",
        living_processes, _IDLE_PROCESS, f.idle_memory,
    ),
    Family("device_utilization_percent", _GAUGE, "Utilisation of the GPU.", devices, _IDLE_DEVICE, f.gpu_percent),
    Family("device_memory_used_bytes", _GAUGE, "Memory in use.", devices, _IDLE_DEVICE, f.memory_used),
    Family("device_memory_total_bytes", _GAUGE, "Memory of the GPU.", devices, _IDLE_DEVICE, f.memory_total),
    Family("device_power_watts", _GAUGE, "Power drawn.", devices, _IDLE_DEVICE, f.power_watts),
    Family("device_temperature_celsius", _GAUGE, "Temperature.", devices, _IDLE_DEVICE, f.temperature),
    Family("memory_total_bytes", _GAUGE, "Memory held by idle processes.", devices, _GPU, f.idle_memory_total),
)  # fmt: skip

# ---------------------------------------------------------------------------- container-gpu-exporter
# Two exporters have this name, one in Go and one in Python. Their metric names differ, so the table has both.

_GPU_INFO: Final = (("index", f.gpu_index), ("name", f.gpu_name), ("uuid", f.gpu_uuid))
_DOCKER: Final = (("pid", f.pid), ("container_id", f.docker_id), ("container", f.docker_name))

_CONTAINER_GPU: Final[tuple[Family[Any], ...]] = (
    Family(
        "container_gpu_memory_usage", _GAUGE, "Memory of a container in MiB.",
        containers, (*_GPU_INFO, ("container_name", f.container_name)), f.container_memory_mib,
    ),
    Family("core_utilization", _GAUGE, "Utilisation of the GPU in percent.", devices, _GPU_INFO, f.gpu_percent),
    Family(
        "memory_utilization", _GAUGE, "Time with memory traffic in percent.",
        devices, _GPU_INFO, f.memory_controller_percent,
    ),
    Family("power_usage", _GAUGE, "Power drawn in watts.", devices, _GPU_INFO, f.power_watts),
    Family("power_limit", _GAUGE, "Power limit in watts.", devices, _GPU_INFO, f.power_limit_watts),
    Family("memory_usage", _GAUGE, "Memory in use in MiB.", devices, _GPU_INFO, f.in_mib(f.memory_used)),
    Family("memory_total", _GAUGE, "Memory of the GPU in MiB.", devices, _GPU_INFO, f.in_mib(f.memory_total)),
    Family(
        "docker_gpu_memory_usage", _GAUGE, "Memory of a process in a container outside of pods, in bytes.",
        container_processes, _DOCKER, f.memory_in_container,
    ),
    Family(
        "pod_gpu_memory_usage", _GAUGE, "Memory of a process in a pod, in bytes.",
        container_processes, (("pid", f.pid), ("pod", f.pod)), f.memory_in_pod,
    ),
    Family(
        "docker_gpu_memory_perc_usage", _GAUGE, "Memory of a process in a container or pod, in percent.",
        container_processes, (*_DOCKER, ("pod", f.pod)), f.memory_percent,
    ),
)  # fmt: skip

# ---------------------------------------------------------------------------- dcgm-exporter

_SHARE: Final = (
    ("gpu", s.gpu_index),
    ("UUID", s.gpu_uuid),
    ("pci_bus_id", s.pci_bus_id),
    ("device", s.device_node),
    ("modelName", s.gpu_name),
    ("GPU_I_PROFILE", s.mig_profile),
    ("GPU_I_ID", s.mig_instance),
    ("Hostname", s.host_name),
    ("DCGM_FI_DRIVER_VERSION", s.driver_version),
    ("container", s.container),
    ("namespace", s.namespace),
    ("pod", s.pod),
)

_DCGM: Final[tuple[Family[Any], ...]] = (
    Family("SM_CLOCK", _GAUGE, "Clock of the SMs (in MHz).", s.shares, _SHARE, s.sm_clock, Aggregation.MAX),
    Family("MEM_CLOCK", _GAUGE, "Clock of the memory (in MHz).", s.shares, _SHARE, s.memory_clock, Aggregation.MAX),
    Family("GPU_TEMP", _GAUGE, "Temperature (in C).", s.shares, _SHARE, s.temperature, Aggregation.MAX),
    Family("POWER_USAGE", _GAUGE, "Power drawn (in W).", s.shares, _SHARE, s.power_watts),
    Family("TOTAL_ENERGY_CONSUMPTION", _COUNTER, "Energy drawn (in mJ).", s.shares, _SHARE, s.energy_mj),
    Family("GPU_UTIL", _GAUGE, "Utilisation of the GPU (in %).", s.shares, _SHARE, s.gpu_percent),
    Family("MEM_COPY_UTIL", _GAUGE, "Memory traffic (in %).", s.shares, _SHARE, s.memory_controller_percent),
    Family("XID_ERRORS", _GAUGE, "The last XID, 0 for none.", s.shares, _SHARE, s.last_xid, Aggregation.MAX),
    Family("FB_FREE", _GAUGE, "Memory free (in MiB).", s.shares, _SHARE, s.free_mib),
    Family("FB_USED", _GAUGE, "Memory in use (in MiB).", s.shares, _SHARE, s.used_mib),
)  # fmt: skip

FAMILIES: Final[Mapping[str, tuple[Family[Any], ...]]] = {
    "gpu-inference": _GPU_INFERENCE,
    "my-gpu-exporter": _MY_GPU,
    "gpu-idle-exporter": _GPU_IDLE,
    "container-gpu-exporter": _CONTAINER_GPU,
    "dcgm-exporter": _DCGM,
}
"""Metrics by the name of their exporter in ``--compat``. Its ``prefix`` begins their names."""
