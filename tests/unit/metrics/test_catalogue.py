from __future__ import annotations

import pytest

from otel_gpu.metrics.catalogue import METRICS, Kind, Level, Metric, Stability
from otel_gpu.metrics.names import label_name, prometheus_name
from tests.builders import attribution
from tests.unit.metrics.builders import points_of

# The contract: name, kind, unit, name in Prometheus, attributes beyond those of its level. The names in Prometheus
# are what prometheus/otlptranslator v1.0.0 gave for each.
G, C, U = "gauge", "counter", "updowncounter"
CONTRACT = {
    "hw.gpu.memory.limit": (U, "By", "hw_gpu_memory_limit_bytes", "hw.name hw.model hw.vendor"),
    "hw.gpu.memory.usage": (U, "By", "hw_gpu_memory_usage_bytes", "hw.name hw.model hw.vendor"),
    "hw.gpu.memory.utilization": (G, "1", "hw_gpu_memory_utilization_ratio", ""),
    "hw.gpu.utilization": (G, "1", "hw_gpu_utilization_ratio", "hw.gpu.task"),
    "hw.power": (G, "W", "hw_power_watts", "hw.type"),
    "hw.energy": (C, "J", "hw_energy_joules_total", "hw.type"),
    "hw.temperature": (G, "Cel", "hw_temperature_celsius", ""),
    "hw.errors": (C, "{error}", "hw_errors_total", "hw.type error.type"),
    "hw.status": (U, "1", "hw_status", "hw.type hw.state"),
    "gpu.device.memory.usage": (U, "By", "gpu_device_memory_usage_bytes", "gpu.memory.state"),
    "gpu.device.memory.overcount": (U, "By", "gpu_device_memory_overcount_bytes", ""),
    "gpu.device.energy": (C, "J", "gpu_device_energy_joules_total", "gpu.energy.state"),
    "gpu.device.energy.info": (
        U,
        "1",
        "gpu_device_energy_info",
        "source policy model gpu.energy.idle.origin gpu.energy.held.origin",
    ),
    "gpu.device.idle.memory": (U, "By", "gpu_device_idle_memory_bytes", ""),
    "gpu.device.process.count": (U, "{process}", "gpu_device_process_count", "gpu.state"),
    "gpu.workload.memory.usage": (U, "By", "gpu_workload_memory_usage_bytes", "gpu.attribution.method"),
    "gpu.workload.memory.confidence": (G, "1", "gpu_workload_memory_confidence_ratio", ""),
    "gpu.workload.utilization": (G, "1", "gpu_workload_utilization_ratio", ""),
    "gpu.workload.memory.bandwidth.utilization": (G, "1", "gpu_workload_memory_bandwidth_utilization_ratio", ""),
    "gpu.workload.compute.time": (C, "s", "gpu_workload_compute_time_seconds_total", ""),
    "gpu.workload.energy": (C, "J", "gpu_workload_energy_joules_total", "gpu.attribution.method"),
    "gpu.workload.time": (C, "s", "gpu_workload_time_seconds_total", "gpu.state"),
    "gpu.workload.idle.duration": (G, "s", "gpu_workload_idle_duration_seconds", ""),
    "gpu.workload.idle.memory": (U, "By", "gpu_workload_idle_memory_bytes", ""),
    "gpu.workload.idle.memory.time": (C, "{By.s}", "gpu_workload_idle_memory_time_total", ""),
    "gpu.workload.idle.energy": (C, "J", "gpu_workload_idle_energy_joules_total", ""),
    "gpu.workload.access": (U, "1", "gpu_workload_access", ""),
    "gpu.workload.allocation": (U, "{gpu}", "gpu_workload_allocation", ""),
    "gpu.workload.cost": (
        C,
        "{currency}",
        "gpu_workload_cost_total",
        "gpu.state gpu.cost.basis gpu.cost.currency",
    ),
    "gpu.workload.info": (
        U,
        "1",
        "gpu_workload_info",
        "slurm.job.name slurm.job.user slurm.job.account slurm.job.partition",
    ),
    "gpu.process.memory.usage": (U, "By", "gpu_process_memory_usage_bytes", "gpu.attribution.method"),
    "gpu.process.utilization": (G, "1", "gpu_process_utilization_ratio", ""),
    "gpu.process.memory.bandwidth.utilization": (G, "1", "gpu_process_memory_bandwidth_utilization_ratio", ""),
    "gpu.process.compute.time": (C, "s", "gpu_process_compute_time_seconds_total", ""),
    "gpu.process.energy": (C, "J", "gpu_process_energy_joules_total", "gpu.attribution.method"),
    "gpu.process.idle.duration": (G, "s", "gpu_process_idle_duration_seconds", ""),
    "gpu.process.idle.memory": (U, "By", "gpu_process_idle_memory_bytes", ""),
    "gpu.process.start_time": (G, "s", "gpu_process_start_time_seconds", ""),
    "gpu.process.active": (U, "1", "gpu_process_active", ""),
    "otel_gpu.up": (U, "1", "otel_gpu_up", "otel_gpu.source"),
    "otel_gpu.source.state": (U, "1", "otel_gpu_source_state", "otel_gpu.source otel_gpu.state"),
    "otel_gpu.collection.duration": (G, "s", "otel_gpu_collection_duration_seconds", "otel_gpu.source"),
    "otel_gpu.source.errors": (C, "{error}", "otel_gpu_source_errors_total", "otel_gpu.source"),
    "otel_gpu.process.unreadable": (U, "{process}", "otel_gpu_process_unreadable", "otel_gpu.reason"),
    "otel_gpu.attribution.coverage": (G, "1", "otel_gpu_attribution_coverage_ratio", "hw.id gpu.index"),
    "otel_gpu.conservation.memory.error": (G, "By", "otel_gpu_conservation_memory_error_bytes", "hw.id gpu.index"),
    "otel_gpu.conservation.energy.error": (G, "J", "otel_gpu_conservation_energy_error_joules", "hw.id gpu.index"),
    "otel_gpu.cpu.time": (C, "s", "otel_gpu_cpu_time_seconds_total", ""),
    "otel_gpu.memory.usage": (U, "By", "otel_gpu_memory_usage_bytes", ""),
    "otel_gpu.series.dropped": (U, "{series}", "otel_gpu_series_dropped", "otel_gpu.series.kind"),
    "otel_gpu.series": (U, "{series}", "otel_gpu_series", ""),
}
GPU = ("hw.id", "gpu.index")
PLACE = (*GPU, "gpu.mig.uuid", "gpu.mig.profile")
OVERFLOW = "otel.metric.overflow"
OPTIONAL = {
    "gpu.index",
    "gpu.mig.uuid",
    "gpu.mig.profile",
    "hw.name",
    "hw.model",
    "process.executable.name",
    "slurm.job.name",
    "slurm.job.user",
    "slurm.job.account",
    "slurm.job.partition",
    OVERFLOW,
}


def keys_of(name: str, own: str) -> set[str]:
    common: tuple[str, ...] = ()
    if name.startswith("hw."):
        common = GPU
    elif name.startswith("gpu.device."):
        common = PLACE
    elif name.startswith("gpu.workload."):
        common = (*PLACE, OVERFLOW)
    elif name.startswith("gpu.process."):
        common = (*PLACE, "process.pid", "process.executable.name", OVERFLOW)
    return {*common, *own.split()}


def ids(metric: Metric) -> str:
    return metric.name


def test_the_catalogue_has_the_metrics_of_the_contract_each_once_and_no_others() -> None:
    assert [metric.name for metric in METRICS] == list(CONTRACT)


@pytest.mark.parametrize("metric", METRICS, ids=ids)
def test_a_metric_follows_the_contract(metric: Metric) -> None:
    kind, unit, prometheus, own = CONTRACT[metric.name]
    assert (metric.kind, metric.unit) == (kind, unit)
    assert prometheus_name(metric) == prometheus
    assert set(metric.keys) == keys_of(metric.name, own)
    assert len(metric.keys) == len(set(metric.keys))


@pytest.mark.parametrize("metric", METRICS, ids=ids)
def test_a_metric_has_a_level_a_stability_and_a_sentence(metric: Metric) -> None:
    levels = {
        "hw": Level.DEVICE,
        "gpu.device": Level.DEVICE,
        "gpu.workload": Level.WORKLOAD,
        "gpu.process": Level.PROCESS,
        "otel_gpu": Level.AGENT,
    }
    assert metric.level is next(level for prefix, level in levels.items() if metric.name.startswith(f"{prefix}."))
    convention = metric.name.startswith("hw.")
    assert metric.stability is (Stability.DEVELOPMENT if convention else Stability.ALPHA)
    assert metric.description[0].isupper() or metric.description[0].isdigit()
    assert metric.description.endswith(".")


def test_a_key_has_one_type_wherever_it_is() -> None:
    types: dict[str, type] = {}
    for metric in METRICS:
        for attribute in metric.attributes:
            assert types.setdefault(attribute.key, attribute.type) is attribute.type
    assert types["process.pid"] is int
    assert types[OVERFLOW] is bool


def test_attributes_that_may_not_apply_or_be_unknown_are_optional() -> None:
    assert {a.key for metric in METRICS for a in metric.attributes if a.optional} == OPTIONAL


def test_no_two_metrics_or_attributes_have_one_name_in_prometheus() -> None:
    names = [prometheus_name(metric) for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        labels = [label_name(key) for key in metric.keys]
        assert len(labels) == len(set(labels))


def test_a_unit_in_the_name_is_not_repeated() -> None:
    metric = Metric("gpu.time.seconds", Kind.GAUGE, "s", "A name.", (), Level.DEVICE, Stability.ALPHA, of_pod=False)
    assert prometheus_name(metric) == "gpu_time_seconds"


@pytest.mark.parametrize("metric", METRICS, ids=ids)
def test_every_metric_has_points_to_give_and_they_have_its_keys(metric: Metric) -> None:
    declared = {attribute.key: attribute for attribute in metric.attributes}
    for point in points_of(metric.name, attribution()):
        assert list(point.attributes) == [key for key in metric.keys if key in point.attributes]
        assert set(declared) - set(point.attributes) <= OPTIONAL
        for key, value in point.attributes.items():
            assert type(value) is declared[key].type
            assert value != ""
            assert not declared[key].values or value in declared[key].values
