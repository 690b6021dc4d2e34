"""The vocabulary of shares: a GPU's figures divided among its workloads, such that what is told sums to the GPU's."""

from __future__ import annotations

from collections.abc import Callable

from otel_gpu.compat.fields import MIB, scaled
from otel_gpu.compat.shares import Claims, Extent, Share
from otel_gpu.compat.subjects import named
from otel_gpu.metrics.rows import GpuRow
from otel_gpu.model import GpuReading, MigReading

# ---------------------------------------------------------------------------- labels


def gpu_index(share: Share) -> str:
    """The GPU's index."""
    return str(share.device.gpu.identity.index)


def gpu_uuid(share: Share) -> str:
    """The GPU's UUID."""
    return share.device.gpu.identity.uuid


def pci_bus_id(share: Share) -> str:
    """Where the GPU is, as NVML and so DCGM write it: eight digits of the domain, all in capitals."""
    domain, separator, rest = (share.device.gpu.identity.pci_bus_id or "").partition(":")
    return f"{domain:0>8}:{rest}".upper() if separator else ""


def device_node(share: Share) -> str:
    """Its file under /dev: its number is the minor, which is not always the index."""
    identity = share.device.gpu.identity
    return f"nvidia{identity.index if identity.minor is None else identity.minor}"


def gpu_name(share: Share) -> str:
    """The GPU's name, with its vendor."""
    return share.device.gpu.identity.name


def mig_profile(share: Share) -> str:
    """The profile of the MIG instance that the workload is on."""
    return "" if share.row is None else share.row.use.mig_profile or ""


def mig_instance(share: Share) -> str:
    """The number of that instance among the GPU's."""
    found = _instance(share)
    return "" if found is None or found.gpu_instance_id is None else str(found.gpu_instance_id)


def host_name(share: Share) -> str:
    """The node's name, or the host's."""
    return share.scene.host_name


def driver_version(share: Share) -> str:
    """The driver's version."""
    driver = share.scene.rows.report.driver
    return "" if driver is None else driver.driver_version or ""


def pod(share: Share) -> str:
    """The workload's pod."""
    return "" if share.row is None else named(share.row, "k8s.pod.name")


def namespace(share: Share) -> str:
    """The namespace of its pod."""
    return "" if share.row is None else named(share.row, "k8s.namespace.name")


def container(share: Share) -> str:
    """The container; of what is in none, the name of the workload, without which all of them would be one series."""
    return "" if share.row is None else named(share.row, "gpu.workload.name")


def _instance(share: Share) -> MigReading | None:
    uuid = None if share.row is None else share.row.use.mig_uuid
    return next((mig for mig in share.device.gpu.reading.mig or () if mig.uuid == uuid), None)


# ---------------------------------------------------------------------------- values that divide


def _divided(
    whole: Callable[[GpuRow], float | None],
    claimed: Callable[[Claims], float | None],
    measure: Callable[[GpuRow, float], float | None] = lambda _, together: together,
) -> Callable[[Share], float | None]:
    """One's part of ``whole``: what one has ``claimed``, by a ``measure`` which is all claims together unless told.

    Nobody's is what is left, and has a series where that is not 0, or where nothing else would be told of the GPU.
    """

    def value(share: Share) -> float | None:
        total, together = whole(share.device), claimed(share.all)
        if total is None or share.extent is Extent.NOTHING:
            return None
        if share.extent is Extent.WHOLE:
            return total
        measured = None if together is None else measure(share.device, together)
        if together is None or measured is None:
            return total if share.row is None else None
        if share.own is None:
            return (total - total * (together / measured) if measured else total) or None
        own = claimed(share.own)
        if own is None:
            return None
        return total * (own / measured) if measured else 0.0

    return value


def _drawn_mj(device: GpuRow, together: float) -> float | None:
    """What the GPU drew in the window; idle and unattributed energy is in it, and in nobody's claim."""
    energy = device.gpu.energy
    return None if energy is None else max(energy.delta_mj, together)


gpu_percent = _divided(lambda device: scaled(device.gpu.reading.gpu_ratio, 100), lambda claims: claims.sm_ratio)
memory_controller_percent = _divided(
    lambda device: scaled(device.gpu.reading.memory_controller_ratio, 100), lambda claims: claims.bandwidth_ratio
)
power_watts = _divided(lambda device: device.gpu.reading.power_w, lambda claims: claims.energy_mj, _drawn_mj)


def used_mib(share: Share) -> float | None:
    """MiB held, listed or inferred; nobody's are those that no workload explains."""
    return None if share.extent is Extent.NOTHING else scaled(share.memory.used_bytes, 1 / MIB)


def free_mib(share: Share) -> float | None:
    """MiB free, divided as those held."""
    return None if share.extent is Extent.NOTHING else scaled(share.memory.free_bytes, 1 / MIB)


def energy_mj(share: Share) -> float | None:
    """Millijoules since the books began; nobody's are those drawn idle and those that are not attributed.

    Always so, however many are on the GPU, and not what is left over: that would jump when a workload comes, goes or is
    forgotten, and Prometheus would count the jump.
    """
    if share.row is None:
        device = share.device.gpu.totals
        return device.idle_mj + device.unattributed_mj if device is not None and share.device.gpu.has_energy else None
    totals = share.row.use.totals
    return None if totals is None or not share.row.has_energy else totals.energy.total_mj or 0


# ---------------------------------------------------------------------------- values that do not


def _of_gpu(read: Callable[[GpuReading], float | None]) -> Callable[[Share], float | None]:
    """The GPU's own figure, for everybody who is on it now, or nobody's if none is: a dashboard looks under its pod."""

    def value(share: Share) -> float | None:
        told = share.extent is Extent.WHOLE or (share.extent is Extent.PART and share.row is not None)
        return read(share.device.gpu.reading) if told else None

    return value


def _last_xid(reading: GpuReading) -> float | None:
    return 0 if reading.last_xid is None and reading.xid_errors == 0 else reading.last_xid


temperature = _of_gpu(lambda reading: reading.temperature_c)
sm_clock = _of_gpu(lambda reading: reading.sm_clock_mhz)
memory_clock = _of_gpu(lambda reading: reading.memory_clock_mhz)
last_xid = _of_gpu(_last_xid)
