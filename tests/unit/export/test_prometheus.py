from __future__ import annotations

import logging
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otel_gpu.bounded_io import printable
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer, choose
from otel_gpu.metrics.catalogue import BY_NAME, METRICS, Kind
from otel_gpu.metrics.labels import Resources, WorkloadIdentity
from otel_gpu.metrics.names import label_name, prometheus_name
from otel_gpu.metrics.series import Collection, MetricBlock, Point, SeriesSet
from tests.unit.export.exposition import (
    NOWHERE,
    RESOURCES,
    TIME_NS,
    collection,
    identity,
    parsed,
    render,
    series,
    simulated,
)

TEXT, OPENMETRICS = Exposition.TEXT, Exposition.OPENMETRICS
GPU = {"hw.id": "GPU-0", "gpu.index": "0"}
TYPED = {**GPU, "hw.type": "gpu"}

EXAMPLE = collection(
    hw_energy=[Point(1234.567, TYPED, start_ns=1)],
    hw_temperature=[Point(41.0, GPU)],
    gpu_workload_memory_usage=[
        Point(1 << 33, {**GPU, "gpu.attribution.method": "measured"}, identity(container_id="c0ffee"))
    ],
)


def labels_of(text: bytes, name: str, form: Exposition = TEXT) -> list[dict[str, str]]:
    """The labels of all series of a name."""
    return [sample.labels for family in parsed(text, form).values() for sample in family.samples if sample.name == name]


# ---------------------------------------------------------------------------- what it looks like


def test_text_format() -> None:
    assert render(EXAMPLE, RESOURCES, TEXT).decode() == (
        "# HELP target_info Target metadata\n"
        "# TYPE target_info gauge\n"
        'target_info{host_name="node-1",host_id="4f3c",service_version="1.2.3"} 1\n'
        "# HELP hw_energy_joules_total Energy consumed by the GPU, across resets of the hardware counter.\n"
        "# TYPE hw_energy_joules_total counter\n"
        'hw_energy_joules_total{hw_id="GPU-0",gpu_index="0",hw_type="gpu",host_name="node-1",host_id="4f3c",'
        'service_name="otel-gpu",service_instance_id="6f8a",service_version="1.2.3"} 1234.567\n'
        "# HELP hw_temperature_celsius Temperature of the GPU.\n"
        "# TYPE hw_temperature_celsius gauge\n"
        'hw_temperature_celsius{hw_id="GPU-0",gpu_index="0",host_name="node-1",host_id="4f3c",'
        'service_name="otel-gpu",service_instance_id="6f8a",service_version="1.2.3"} 41.0\n'
        "# HELP gpu_workload_memory_usage_bytes GPU memory that the workload holds, by method.\n"
        "# TYPE gpu_workload_memory_usage_bytes gauge\n"
        'gpu_workload_memory_usage_bytes{hw_id="GPU-0",gpu_index="0",gpu_attribution_method="measured",'
        'host_name="node-1",host_id="4f3c",gpu_workload_kind="container",gpu_workload_id="c0ffee",'
        'gpu_workload_name="vllm",container_id="c0ffee"} 8589934592\n'
    )


def test_openmetrics_has_units_counters_without_their_suffix_and_an_end() -> None:
    lines = render(EXAMPLE, RESOURCES, OPENMETRICS).decode().splitlines()
    assert lines[:6] == [
        "# HELP target Target metadata",
        "# TYPE target info",
        'target_info{host_name="node-1",host_id="4f3c",service_version="1.2.3"} 1',
        "# UNIT hw_energy_joules joules",
        "# HELP hw_energy_joules Energy consumed by the GPU, across resets of the hardware counter.",
        "# TYPE hw_energy_joules counter",
    ]
    assert lines[6].startswith('hw_energy_joules_total{hw_id="GPU-0",')
    assert lines[-1] == "# EOF"


def test_both_formats_have_the_same_series() -> None:
    found = simulated()
    assert [series(parsed(render(found, RESOURCES, form), form)) for form in Exposition] == [
        series(parsed(render(found, RESOURCES, TEXT), TEXT))
    ] * 2


# ---------------------------------------------------------------------------- the whole catalogue, read back


@pytest.fixture(scope="module")
def exported() -> Collection:
    """Everything an agent exports of a simulated host."""
    return simulated()


@pytest.mark.parametrize("form", Exposition)
def test_every_metric_is_read_back_with_its_name_type_help_and_values(exported: Collection, form: Exposition) -> None:
    blocks = parsed(render(exported, NOWHERE, form), form)
    assert len(blocks) == len(exported.blocks)
    for family in exported.blocks:
        metric, name = family.metric, prometheus_name(family.metric)
        # Both parsers call a counter's family as OpenMetrics does.
        found = blocks[name.removesuffix("_total")]
        assert found.type == ("counter" if metric.kind is Kind.COUNTER else "gauge")
        assert found.documentation == metric.description
        assert {sample.name for sample in found.samples} == {name}
        assert [sample.value for sample in found.samples] == [point.value for point in family.points]


def test_the_unit_of_a_metric_is_the_end_of_its_name(exported: Collection) -> None:
    blocks = parsed(render(exported, NOWHERE, OPENMETRICS), OPENMETRICS)
    units = {name: family.unit for name, family in blocks.items()}
    assert all(name.endswith(f"_{unit}") for name, unit in units.items() if unit)
    assert set(units.values()) == {"", "bytes", "celsius", "joules", "ratio", "seconds", "watts"}
    assert {name for name in units if name.startswith("gpu_workload") and not units[name]} == {
        "gpu_workload_access",
        "gpu_workload_allocation",
        "gpu_workload_cost",
        "gpu_workload_idle_memory_time",
        "gpu_workload_info",
    }


@pytest.mark.parametrize("form", Exposition)
def test_no_label_is_empty(exported: Collection, form: Exposition) -> None:
    assert b'=""' not in render(exported, RESOURCES, form)
    empty = Point(1.0, {**GPU, "gpu.mig.uuid": ""}, WorkloadIdentity((("container.name", ""),)))
    resources = Resources({"host.name": ""}, {})
    assert b'=""' not in render(collection(gpu_workload_utilization=[empty]), resources, form)


def test_labels_come_from_the_point_and_its_resource(exported: Collection) -> None:
    blocks = parsed(render(exported, RESOURCES, TEXT), TEXT)
    for family in exported.blocks:
        found = blocks[prometheus_name(family.metric).removesuffix("_total")]
        for point, sample in zip(family.points, found.samples, strict=True):
            expected = {**RESOURCES.of(point.workload), **point.attributes}
            assert sample.labels == {label_name(key): str(value) for key, value in expected.items()}


# ---------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, b"0"),
        (1 << 60, b"1152921504606846976"),
        (-5, b"-5"),
        (0.001, b"0.001"),
        (123456789.123, b"123456789.123"),
        (4294967295.999, b"4294967295.999"),
        (1e22, b"1e+22"),
    ],
)
def test_a_value_is_written_in_full(value: float, text: bytes) -> None:
    exposed = render(collection(hw_temperature=[Point(value, GPU)]), NOWHERE, TEXT)
    assert exposed.endswith(b'{hw_id="GPU-0",gpu_index="0"} ' + text + b"\n")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_left_out(value: float) -> None:
    exposed = render(collection(hw_temperature=[Point(value, GPU), Point(1.0, {**GPU, "hw.id": "x"})]), NOWHERE, TEXT)
    assert list(series(parsed(exposed, TEXT)).values()) == [1.0]


@pytest.mark.parametrize("form", Exposition)
def test_the_last_of_equal_series_counts(form: Exposition, caplog: pytest.LogCaptureFixture) -> None:
    twice = [Point(1.0, GPU), Point(2.0, dict(GPU))]
    with caplog.at_level(logging.DEBUG):
        exposed = render(collection(hw_temperature=twice), NOWHERE, form)
    assert list(series(parsed(exposed, form)).values()) == [2.0]
    assert caplog.messages == ["hw.temperature: 1 points are not rendered"]


def test_an_empty_collection_is_still_an_exposition() -> None:
    assert render(collection(), NOWHERE, TEXT) == b""
    assert render(collection(), NOWHERE, OPENMETRICS) == b"# EOF\n"


# ---------------------------------------------------------------------------- labels


@given(st.text(), st.text(), st.sampled_from(Exposition))
@example('\\"\\n",x="1"} 1 #', "a\rb\n\u2028", Exposition.TEXT)
@example('\\"\\n",x="1"} 1 #', "a\rb\n\u2028", Exposition.OPENMETRICS)
def test_any_text_is_read_back_printable_with_its_line_breaks(process: str, host: str, form: Exposition) -> None:
    point = Point(1, {**GPU, "process.pid": 7, "process.executable.name": process}, identity())
    exposed = render(collection(gpu_process_active=[point]), Resources({"host.name": host}, {}), form)
    [labels] = labels_of(exposed, "gpu_process_active", form)
    found = labels.get("process_executable_name", ""), labels["process_pid"], labels.get("host_name", "")
    expected, expected_host = ("\n".join(map(printable, text.split("\n"))) for text in (process, host))
    assert found == (expected, "7", expected_host)


def test_invalid_unicode_is_replaced() -> None:
    named = Point(1, GPU, identity(container_name="a\udc80"))
    [labels] = labels_of(render(collection(gpu_workload_access=[named]), NOWHERE, TEXT), "gpu_workload_access")
    assert labels["container_name"] == "a\N{REPLACEMENT CHARACTER}"


def test_the_overflow_entry_is_marked_and_the_others_are_not() -> None:
    points = [Point(1, {**GPU, "otel.metric.overflow": True}, identity()), Point(1, GPU, identity())]
    exposed = render(collection(gpu_workload_access=points), NOWHERE, TEXT)
    assert [labels.get("otel_metric_overflow") for labels in labels_of(exposed, "gpu_workload_access")] == [
        "true",
        None,
    ]


# ---------------------------------------------------------------------------- Resources


def test_any_attribute_of_a_resource_is_a_label() -> None:
    extra = {"deployment.environment": "prod", "7zip": "a", "größe": "b"}
    exposed = render(collection(hw_temperature=[Point(1.0, GPU)]), Resources(extra, {}), TEXT)
    [labels] = labels_of(exposed, "hw_temperature_celsius")
    own = {"hw_id": "GPU-0", "gpu_index": "0"}
    assert labels == {**own, "deployment_environment": "prod", "key_7zip": "a", "gr__e": "b"}


def test_attributes_with_one_name_in_prometheus_share_the_label() -> None:
    exposed = render(collection(hw_temperature=[Point(1.0, GPU)]), Resources({"a_b": "2", "a.b": "1"}, {}), OPENMETRICS)
    [labels] = labels_of(exposed, "hw_temperature_celsius", OPENMETRICS)
    assert labels["a_b"] == "1;2"


def test_reserved_names_are_left_out() -> None:
    reserved = {"__name__": "x", "__address__": "y", "..": "z", "": "w", "_": "v"}
    exposed = render(collection(hw_temperature=[Point(1.0, GPU)]), Resources(reserved, {}), OPENMETRICS)
    [labels] = labels_of(exposed, "hw_temperature_celsius", OPENMETRICS)
    assert labels == {"hw_id": "GPU-0", "gpu_index": "0"}


def test_an_attribute_of_a_point_wins_over_one_of_the_resource() -> None:
    resources = Resources({"hw.id": "other", "model": "x"}, {})
    exposed = render(EXAMPLE, resources, OPENMETRICS)
    for name in ("hw_energy_joules_total", "gpu_workload_memory_usage_bytes"):
        [labels] = labels_of(exposed, name, OPENMETRICS)
        assert (labels["hw_id"], labels["model"]) == ("GPU-0", "x")


@pytest.mark.parametrize("missing", ["service.name", "service.instance.id"])
def test_there_is_a_target_only_where_service_and_instance_are_known(missing: str) -> None:
    agent = {key: value for key, value in RESOURCES.agent.items() if key != missing}
    assert b"target_info" not in render(EXAMPLE, Resources(RESOURCES.shared, agent), TEXT)


# ---------------------------------------------------------------------------- from rendering to rendering


WORKLOADS = [identity(k8s_pod_name=name) for name in "abc"]
POINTS = [Point(0, {**GPU, "hw.id": str(n % 5)}, WORKLOADS[n % 3], None) for n in range(8)]  # eight different series
SERIES = [MetricBlock.of(METRICS[0], points).series for points in (POINTS[:3], POINTS, [*POINTS[2:], *POINTS[2:4]])]
VALUES = [0, 0.0, -0.0, 1, 1.0, 7.5, 2**70, math.nan, math.inf]
COLUMNS = st.dictionaries(
    st.sampled_from(["gpu.workload.access", "gpu.workload.utilization", "gpu.workload.compute.time"]),
    st.lists(st.sampled_from(VALUES), min_size=8, max_size=8),
)


@given(st.lists(st.tuples(st.sampled_from(SERIES), COLUMNS, st.sampled_from(Exposition)), min_size=2, max_size=10))
def test_a_renderer_that_lives_across_collections_renders_as_a_fresh_one(
    cycles: list[tuple[SeriesSet, dict[str, list[float]], Exposition]],
) -> None:
    renderer = PrometheusRenderer(RESOURCES)
    for each, columns, form in cycles:
        blocks = [MetricBlock(BY_NAME[name], each, tuple(column[: len(each)])) for name, column in columns.items()]
        found = Collection(1, tuple(blocks))
        assert renderer.render(found, form) == render(found, RESOURCES, form)


def test_after_a_value_that_cannot_be_rendered_the_next_rendering_is_complete() -> None:
    renderer = PrometheusRenderer(RESOURCES)
    good, bad = (
        Collection(1, (MetricBlock(BY_NAME["gpu.workload.access"], SERIES[0], values),))
        for values in ((1, 2, 3), (7, 10**400, 8))
    )
    before = renderer.render(good, TEXT)
    with pytest.raises(OverflowError):
        renderer.render(bad, TEXT)
    assert renderer.render(good, TEXT) == before


# ---------------------------------------------------------------------------- created timestamps


def with_created(found: Collection, form: Exposition) -> bytes:
    return PrometheusRenderer(RESOURCES, created=True).render(found, form)


def test_created_samples_follow_counters_with_a_start_in_openmetrics_only(exported: Collection) -> None:
    assert with_created(exported, TEXT) == render(exported, RESOURCES, TEXT)
    plain = series(parsed(render(exported, RESOURCES, OPENMETRICS), OPENMETRICS))
    found = series(parsed(with_created(exported, OPENMETRICS), OPENMETRICS))
    assert {key: value for key, value in found.items() if not key[0].endswith("_created")} == plain
    starts = [point.start_ns for block in exported.blocks for point in block.points if point.start_ns is not None]
    created = sorted(value for (name, _), value in found.items() if name.endswith("_created"))
    assert created == pytest.approx(sorted(start / 1e9 for start in starts))
    assert len(created) > 50


def test_a_created_sample_is_beside_its_counter_in_seconds_and_never_in_the_future() -> None:
    points = [
        Point(1.5, TYPED, start_ns=TIME_NS - 1_500_000_000),
        Point(2.5, {**TYPED, "hw.id": "GPU-1"}, start_ns=TIME_NS + 10**9),
        Point(3.5, {**TYPED, "hw.id": "GPU-2"}),
    ]
    lines = with_created(collection(hw_energy=points), OPENMETRICS).decode().splitlines()
    samples = [line.split("{")[0] + line.split("}")[1] for line in lines if line.startswith("hw_energy")]
    assert samples == [
        "hw_energy_joules_total 1.5",
        "hw_energy_joules_created 1699999998.5",
        "hw_energy_joules_total 2.5",
        "hw_energy_joules_created 1700000000.0",
        "hw_energy_joules_total 3.5",
    ]


def test_no_two_metrics_share_a_name_in_openmetrics() -> None:
    names = [prometheus_name(metric).removesuffix("_total") for metric in METRICS]
    assert len({*names, "target"}) == len(names) + 1


# ---------------------------------------------------------------------------- negotiation


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", TEXT),
        ("*/*", TEXT),  # curl
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", TEXT),  # a browser
        pytest.param(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OPENMETRICS,
            id="Prometheus 2.42",
        ),
        pytest.param("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", TEXT,
                     id="Prometheus 2.5"),
        pytest.param(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OPENMETRICS,
            id="Prometheus 3",
        ),
        pytest.param(
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
            "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=underscores;q=0.3,"
            "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            OPENMETRICS,
            id="Prometheus 3, protobuf first",
        ),
        pytest.param("text/plain;version=0.0.4;q=1,*/*;q=0.1", TEXT, id="vmagent"),
        pytest.param(
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
            TEXT,
            id="Telegraf",
        ),
        ("application/openmetrics-text", OPENMETRICS),
        ('Application/OpenMetrics-Text; Version="1.0.0"', OPENMETRICS),
        ("text/plain;version=0.0.4;q=0.1,application/openmetrics-text;version=1.0.0;q=0.2", OPENMETRICS),
        ("text/plain;version=0.0.4;q=0.2,application/openmetrics-text;version=1.0.0;q=0.1", TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0", TEXT),
        ("application/openmetrics-text;version=2.0.0", TEXT),
        ("application/openmetrics-text;q=nonsense", TEXT),
        ("application/openmetrics-text;q=nan", TEXT),
        ("application/openmetrics-text;q=1e9", TEXT),
        ("image/png", TEXT),
        (",;,=;q;;", TEXT),
    ],
)  # fmt: skip
def test_the_format_is_the_one_that_the_scraper_prefers(accept: str, chosen: Exposition) -> None:
    assert choose(accept) is chosen


@given(st.text())
def test_any_header_has_an_answer(accept: str) -> None:
    assert choose(accept) in Exposition
