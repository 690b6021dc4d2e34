"""``otel_gpu.instrument``: the instruments on the provider of another service."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.metrics import MeterProvider as AnyProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_gpu
from otel_gpu.agent import embed
from otel_gpu.agent.host import Host
from otel_gpu.config.groups import KubernetesApi
from otel_gpu.errors import UsageError
from otel_gpu.model import SourceState
from otel_gpu.sources.base import GpuRead
from tests.builders import FakeGpus, FakeProcesses

PATIENCE_S = 30.0
IGNORED = {
    "OTEL_METRICS_EXPORTER": "otlp_proto_http",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
    "OTEL_EXPORTER_OTLP_TIMEOUT": "10.5",
    "OTEL_EXPORTER_PROMETHEUS_PORT": "99999",
    "OTEL_GPU_LISTEN": "nowhere",
    "OTEL_GPU_LOG_LEVEL": "loud",
}


class Service:
    """A service with a provider, and what it would export."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)

    def names(self) -> list[str]:
        """The metric of every point in a collection."""
        data = self.reader.get_metrics_data()
        return [
            metric.name
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for _ in metric.data.data_points
        ]


@pytest.fixture
def service() -> Iterator[Service]:
    one = Service()
    yield one
    one.provider.shutdown()


def until(fulfilled: Callable[[], bool]) -> None:
    """Wait for the effect of another thread."""
    end_s = time.monotonic() + PATIENCE_S
    while not fulfilled():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def refusal(provider: AnyProvider | None = None, **settings: Any) -> str:
    with pytest.raises(UsageError) as error:
        otel_gpu.instrument(provider, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------------------- settings


@pytest.mark.parametrize(("name", "value"), IGNORED.items())
def test_variables_of_exporters_listeners_and_logs_are_ignored(
    name: str, value: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with otel_gpu.instrument(service.provider, source="sim"):
        until(lambda: "hw.energy" in service.names())


def test_only_settings_of_sampling_and_attribution_are_read_from_the_file(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("source: sim\nprocess-metrics: off\nlisten: nowhere\notlp-protocol: pigeon\n", encoding="utf-8")
    monkeypatch.setenv("OTEL_GPU_CONFIG", str(path))
    with otel_gpu.instrument(service.provider):
        until(lambda: "gpu.workload.energy" in service.names())
        assert not any(name.startswith("gpu.process.") for name in service.names())
    path.write_text("source: nowhere\n", encoding="utf-8")
    assert refusal(service.provider) == f"{path}:1: source: 'nowhere' is not a valid value; use nvml, sim or auto"


def test_an_argument_takes_precedence_over_a_variable_of_sampling(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_GPU_SOURCE", "sim")
    monkeypatch.setenv("OTEL_GPU_INTERVAL", "never")
    assert refusal(service.provider).startswith("OTEL_GPU_INTERVAL: 'never' is not a valid duration; ")
    with otel_gpu.instrument(service.provider, interval="2s"):
        until(lambda: "hw.energy" in service.names())


def test_an_invalid_value_is_refused_with_its_origin() -> None:
    assert refusal(interval="soon") == (
        "instrument(): interval: 'soon' is not a valid duration; use 1s to 1h, for example 5s"
    )


def test_a_value_that_is_not_text_is_refused() -> None:
    assert refusal(interval=5) == ("instrument(): interval: 5 is not text; use 1s to 1h, for example 5s")


@pytest.mark.parametrize("name", ["listen", "otlp_headers", "web_config", "log_level", "exporters"])
def test_a_setting_without_effect_is_refused(name: str) -> None:
    settings: dict[str, Any] = {name: ""}
    message = refusal(source="sim", **settings)
    assert message.startswith(f"instrument(): {name} would do nothing here; use interval, ")


def test_all_settings_without_effect_are_named() -> None:
    assert refusal(listen="", web_config="").startswith("instrument(): listen, web_config would do nothing here; ")


def test_an_unknown_setting_is_refused_with_the_closest_name() -> None:
    assert refusal(intervall="5s") == "instrument(): there is no setting 'intervall'; did you mean interval?"


def test_an_object_that_is_not_a_provider_is_refused() -> None:
    wrong: Any = "http://localhost:4318"
    assert refusal(wrong, source="sim") == "instrument(): a MeterProvider is expected, not str"


def test_the_service_account_is_used_only_if_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert embed._load({}).names.kubernetes_api is KubernetesApi.NEVER
    assert embed._load({"kubernetes_api": "auto"}).names.kubernetes_api is KubernetesApi.AUTO
    monkeypatch.setenv("OTEL_GPU_KUBERNETES_API", "always")
    assert embed._load({}).names.kubernetes_api is KubernetesApi.ALWAYS


# ---------------------------------------------------------------------------- a provider's life


def test_a_provider_can_be_instrumented_again_once_the_first_is_closed(service: Service) -> None:
    first = otel_gpu.instrument(service.provider, source="sim")
    until(lambda: "gpu.process.energy" in service.names())
    first.close()
    assert service.names() == []
    with otel_gpu.instrument(service.provider, source="sim", process_metrics="off"):
        until(lambda: "gpu.workload.energy" in service.names())
        first.close()  # a second time, which does not affect the other
        names = service.names()
        assert "gpu.workload.energy" in names
        assert not any(name.startswith("gpu.process.") for name in names)
    assert service.names() == []


def test_a_provider_has_one_instrumentation_at_a_time(service: Service) -> None:
    with otel_gpu.instrument(service.provider, source="sim"):
        message = refusal(service.provider, source="sim")
        assert message == "instrument(): this provider is already instrumented; close the first"
        other = Service()
        with otel_gpu.instrument(other.provider, source="sim"):
            until(lambda: "hw.energy" in service.names() and "hw.energy" in other.names())
        other.provider.shutdown()


def test_a_service_that_sets_its_global_provider_later_is_not_instrumented_twice(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then OpenTelemetry returns a proxy, which passes its instruments on to the provider that is set."""
    proxy = Service()
    monkeypatch.setattr(embed, "get_meter_provider", lambda: proxy.provider)
    first = otel_gpu.instrument(source="sim")
    monkeypatch.setattr(embed, "get_meter_provider", lambda: service.provider)
    assert refusal(source="sim").endswith("already instrumented; close the first")
    first.close()
    with otel_gpu.instrument(source="sim"):
        until(lambda: "hw.energy" in proxy.names())
    proxy.provider.shutdown()


def test_a_provider_is_not_kept_alive() -> None:
    service = Service()
    otel_gpu.instrument(service.provider, source="sim").close()
    service.provider.shutdown()
    gone = weakref.ref(service.provider)
    del service
    gc.collect()
    assert gone() is None


def test_every_collection_reports_its_number_of_series(service: Service) -> None:
    with otel_gpu.instrument(service.provider, source="sim"):
        until(lambda: "hw.energy" in service.names())
        data: Any = service.reader.get_metrics_data()
        metrics = data.resource_metrics[0].scope_metrics[0].metrics
        [series] = [point.value for one in metrics if one.name == "otel_gpu.series" for point in one.data.data_points]
        assert series == sum(len(one.data.data_points) for one in metrics) > 100


# ---------------------------------------------------------------------------- what is logged


def test_without_a_driver_it_runs_logs_the_reason_and_reports_the_state(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_driver = GpuRead(state=SourceState.UNAVAILABLE, reason="NVML: no driver", errors=1)
    monkeypatch.setattr(embed, "open_host", lambda *_: Host(FakeGpus(no_driver), FakeProcesses(), ()))
    with otel_gpu.instrument(service.provider, source="nvml"):
        until(lambda: "otel_gpu.source.state" in service.names())
        assert "hw.energy" not in service.names()
        until(lambda: bool(caplog.records))
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "nvml is unavailable: NVML: no driver")


def test_a_simulated_host_is_logged_as_one(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    otel_gpu.instrument(service.provider, source="sim").close()
    assert [record.getMessage() for record in caplog.records] == [
        "SIMULATED HOST: no figure here is from a real GPU (requested with --source sim)"
    ]
