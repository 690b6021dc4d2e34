from __future__ import annotations

import logging
import math
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.export.prometheus import Exposition, PrometheusText, choose, render
from otel_gpu.metrics.catalogue import BY_NAME, METRICS, Kind
from otel_gpu.metrics.collect import collect
from otel_gpu.metrics.collection import Collection, MetricBlock, Resources
from otel_gpu.metrics.identity import IDENTITY_KEYS, WorkloadIdentity
from otel_gpu.metrics.names import label_name, prometheus_name
from otel_gpu.metrics.points import Point
from otel_gpu.metrics.series import Series
from tests.unit.export.exposition import (
    NOWHERE,
    RESOURCES,
    collection,
    identity,
    parsed,
    series,
    simulated_reading,
)
from tests.unit.export.samples import with_gaps

TEXT, OPENMETRICS = Exposition.TEXT, Exposition.OPENMETRICS
GPU = {"hw.id": "GPU-0", "gpu.index": "0"}
TYPED = {**GPU, "hw.type": "gpu"}
PLACE = {**GPU, "gpu.mig.uuid": "", "gpu.mig.profile": ""}

EXAMPLE = collection(
    hw_energy=[Point(1234.567, TYPED, start_ns=1)],
    hw_temperature=[Point(41.0, GPU)],
    gpu_workload_memory_usage=[
        Point(1 << 33, {**PLACE, "gpu.attribution.method": "measured"}, identity(container_id="c0ffee"))
    ],
)


def labels_of(text: bytes, name: str, form: Exposition = TEXT) -> list[dict[str, str]]:
    """The labels of all series of a name."""
    return [sample.labels for family in parsed(text, form).values() for sample in family.samples if sample.name == name]


# ---------------------------------------------------------------------------- what it looks like


def test_text_as_prometheus_has_always_read_it() -> None:
    assert render(EXAMPLE, RESOURCES, TEXT).decode() == (
        "# HELP target_info Target metadata\n"
        "# TYPE target_info gauge\n"
        'target_info{host_name="node-1",host_id="4f3c",service_version="1.2.3"} 1\n'
        "# HELP hw_energy_joules_total Energy consumed by the GPU, over resets of the hardware's counter.\n"
        "# TYPE hw_energy_joules_total counter\n"
        'hw_energy_joules_total{hw_id="GPU-0",gpu_index="0",hw_type="gpu",host_name="node-1",host_id="4f3c",'
        'service_name="otel-gpu",service_instance_id="6f8a",service_version="1.2.3"} 1234.567\n'
        "# HELP hw_temperature_celsius Temperature of the GPU.\n"
        "# TYPE hw_temperature_celsius gauge\n"
        'hw_temperature_celsius{hw_id="GPU-0",gpu_index="0",host_name="node-1",host_id="4f3c",'
        'service_name="otel-gpu",service_instance_id="6f8a",service_version="1.2.3"} 41.0\n'
        "# HELP gpu_workload_memory_usage_bytes GPU memory the workload holds, by how that was found.\n"
        "# TYPE gpu_workload_memory_usage_bytes gauge\n"
        'gpu_workload_memory_usage_bytes{hw_id="GPU-0",gpu_index="0",gpu_mig_uuid="",gpu_mig_profile="",'
        'otel_metric_overflow="",gpu_attribution_method="measured",gpu_workload_kind="container",'
        'gpu_workload_id="c0ffee",gpu_workload_name="vllm",gpu_workload_outer_id="",container_id="c0ffee",container_name="",'
        'container_image_name="",container_runtime_name="",k8s_pod_uid="",k8s_pod_name="",k8s_namespace_name="",'
        'k8s_container_name="",slurm_job_id="",systemd_unit="",host_name="node-1",host_id="4f3c"} 8589934592\n'
    )


def test_openmetrics_has_units_counters_without_their_suffix_and_an_end() -> None:
    lines = render(EXAMPLE, RESOURCES, OPENMETRICS).decode().splitlines()
    assert lines[:6] == [
        "# HELP target Target metadata",
        "# TYPE target info",
        'target_info{host_name="node-1",host_id="4f3c",service_version="1.2.3"} 1',
        "# UNIT hw_energy_joules joules",
        "# HELP hw_energy_joules Energy consumed by the GPU, over resets of the hardware's counter.",
        "# TYPE hw_energy_joules counter",
    ]
    assert lines[6].startswith('hw_energy_joules_total{hw_id="GPU-0",')
    assert lines[-1] == "# EOF"


def test_both_formats_have_the_same_series() -> None:
    told = collect(simulated_reading())
    assert [series(parsed(render(told, RESOURCES, form), form)) for form in Exposition] == [
        series(parsed(render(told, RESOURCES, TEXT), TEXT))
    ] * 2


# ---------------------------------------------------------------------------- the whole catalogue, read back


@pytest.fixture(scope="module")
def told() -> Collection:
    """Everything an agent tells of a simulated host."""
    return collect(simulated_reading())


@pytest.mark.parametrize("form", Exposition)
def test_every_metric_is_read_back_with_its_name_type_help_and_values(told: Collection, form: Exposition) -> None:
    blocks = parsed(render(told, NOWHERE, form), form)
    assert len(blocks) == len(told.blocks)
    for family in told.blocks:
        metric, name = family.metric, prometheus_name(family.metric)
        # Both parsers call a counter's family as OpenMetrics does.
        found = blocks[name.removesuffix("_total")]
        assert found.type == ("counter" if metric.kind is Kind.COUNTER else "gauge")
        assert found.documentation == metric.description
        assert {sample.name for sample in found.samples} == {name}
        assert [sample.value for sample in found.samples] == [point.value for point in family.points]


def test_the_unit_of_a_metric_is_the_end_of_its_name(told: Collection) -> None:
    blocks = parsed(render(told, NOWHERE, OPENMETRICS), OPENMETRICS)
    units = {name: family.unit for name, family in blocks.items()}
    assert all(name.endswith(f"_{unit}") for name, unit in units.items() if unit)
    assert set(units.values()) == {"", "bytes", "celsius", "joules", "ratio", "seconds", "watts"}
    assert {name for name in units if name.startswith("gpu_workload") and not units[name]} == {
        "gpu_workload_access",
        "gpu_workload_allocation",
        "gpu_workload_cost",
        "gpu_workload_idle_memory_time",
    }


def test_all_series_of_a_metric_have_the_same_labels_in_one_order(told: Collection) -> None:
    blocks = parsed(render(told, RESOURCES, TEXT), TEXT)
    for metric in (family.metric for family in told.blocks):
        of_workload = metric.level in ("workload", "process")
        beyond = [*IDENTITY_KEYS, *RESOURCES.shared] if of_workload else [*RESOURCES.shared, *RESOURCES.agent]
        expected = [label_name(key) for key in (*metric.keys, *beyond)]
        for sample in blocks[prometheus_name(metric).removesuffix("_total")].samples:
            assert list(sample.labels) == expected


def test_labels_are_those_of_the_point_and_of_its_resource(told: Collection) -> None:
    blocks = parsed(render(told, RESOURCES, TEXT), TEXT)
    for family in told.blocks:
        found = blocks[prometheus_name(family.metric).removesuffix("_total")]
        for point, sample in zip(family.points, found.samples, strict=True):
            expected = {**RESOURCES.of(point.workload), **point.attributes}
            known = {name: value for name, value in sample.labels.items() if value}
            assert known == {label_name(key): str(value) for key, value in expected.items() if value}


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


@given(st.integers(0, 1 << 50))
def test_energy_is_exact_to_the_millijoule(energy_mj: int) -> None:
    exposed = render(collection(hw_energy=[Point(energy_mj / 1e3, TYPED)]), NOWHERE, OPENMETRICS)
    [value] = series(parsed(exposed, OPENMETRICS)).values()
    assert round(value * 1000) == energy_mj


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_left_out(value: float) -> None:
    exposed = render(collection(hw_temperature=[Point(value, GPU), Point(1.0, {**GPU, "hw.id": "x"})]), NOWHERE, TEXT)
    assert list(series(parsed(exposed, TEXT)).values()) == [1.0]


@pytest.mark.parametrize("form", Exposition)
def test_of_a_series_that_is_there_twice_the_last_is_shown(form: Exposition, caplog: pytest.LogCaptureFixture) -> None:
    twice = [Point(1.0, GPU), Point(2.0, dict(GPU))]
    with caplog.at_level(logging.DEBUG):
        exposed = render(collection(hw_temperature=twice), NOWHERE, form)
    assert list(series(parsed(exposed, form)).values()) == [2.0]
    assert caplog.messages == ["hw.temperature: 1 points are no series of their own"]


def test_nothing_to_tell_is_still_an_exposition() -> None:
    assert render(collection(), NOWHERE, TEXT) == b""
    assert render(collection(), NOWHERE, OPENMETRICS) == b"# EOF\n"


# ---------------------------------------------------------------------------- labels


NASTY = [
    '"',
    "\\",
    "\n",
    '\\"',
    "\\n",
    "a\rb",
    "\t",
    "\0",
    "\x1b[31m",
    "\x85",
    "\u2028",
    "模型 🦙",
    '",x="1"} 1 #',
    " {}, ",
]


@pytest.mark.parametrize("form", Exposition)
@pytest.mark.parametrize("value", NASTY)
def test_whatever_a_container_calls_itself_stays_within_its_label(value: str, form: Exposition) -> None:
    named = Point(1, PLACE, identity(container_name=value))
    [labels] = labels_of(render(collection(gpu_workload_access=[named]), RESOURCES, form), "gpu_workload_access", form)
    assert labels["container_name"] == value
    assert labels["host_name"] == "node-1"


@given(st.text(), st.text(), st.sampled_from(Exposition))
def test_any_text_is_read_back_as_it_was(process: str, host: str, form: Exposition) -> None:
    point = Point(1, {**PLACE, "process.pid": 7, "process.executable.name": process}, identity())
    exposed = render(collection(gpu_process_active=[point]), Resources({"host.name": host}, {}), form)
    [labels] = labels_of(exposed, "gpu_process_active", form)
    assert (labels["process_executable_name"], labels["process_pid"], labels["host_name"]) == (process, "7", host)


def test_what_is_no_unicode_is_shown_as_python_writes_it() -> None:
    named = Point(1, PLACE, identity(container_name="a\udc80"))
    [labels] = labels_of(render(collection(gpu_workload_access=[named]), NOWHERE, TEXT), "gpu_workload_access")
    assert labels["container_name"] == "a\\udc80"


def test_the_overflow_entry_is_marked_and_the_others_are_not() -> None:
    points = [Point(1, {**PLACE, "otel.metric.overflow": True}, identity()), Point(1, PLACE, identity())]
    exposed = render(collection(gpu_workload_access=points), NOWHERE, TEXT)
    assert [labels["otel_metric_overflow"] for labels in labels_of(exposed, "gpu_workload_access")] == ["true", ""]


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


def test_names_that_prometheus_keeps_to_itself_are_left_out() -> None:
    reserved = {"__name__": "x", "__address__": "y", "..": "z", "": "w", "_": "v"}
    exposed = render(collection(hw_temperature=[Point(1.0, GPU)]), Resources(reserved, {}), OPENMETRICS)
    [labels] = labels_of(exposed, "hw_temperature_celsius", OPENMETRICS)
    assert labels == {"hw_id": "GPU-0", "gpu_index": "0"}


def test_an_attribute_of_a_point_stands_before_one_of_the_resource() -> None:
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


def test_a_second_rendering_shows_what_a_first_would() -> None:
    text, told = PrometheusText(RESOURCES), collect(simulated_reading())
    fresh = collect(simulated_reading())
    assert text.render(told, TEXT) == text.render(fresh, TEXT) == render(fresh, RESOURCES, TEXT)


def test_a_family_that_stays_is_written_as_it_was_whatever_stands_around_it_and_in_both_formats() -> None:
    text = PrometheusText(RESOURCES)
    energy, access = (EXAMPLE.blocks[number] for number in (0, 2))
    other = collection(hw_temperature=[Point(3.0, GPU), Point(5.0, {**GPU, "hw.id": "x"})]).blocks
    for blocks in ((energy, access), (energy, *other, access), (*other, access), (energy,), (), (access, energy)):
        told = Collection(1, blocks)
        for form in (TEXT, OPENMETRICS, TEXT):
            assert text.render(told, form) == render(told, RESOURCES, form)


WHO = [identity(k8s_pod_name=name) for name in "abc"]
ROWS = [Point(0, {**PLACE, "hw.id": str(n % 5)}, WHO[n % 3], None) for n in range(8)]  # none of them twice
TWICE = Series.of([*ROWS[2:], *ROWS[2:4]])
SEATS = [Series.of(ROWS[:3]), *(replace(each, runs=runs) for each in (Series.of(ROWS), TWICE) for runs in (1, 2, 4))]
VALUES = [0, 0.0, -0.0, 1, 1.0, 7.5, 2**70, math.nan, math.inf, None, None]
COLUMNS = st.dictionaries(
    st.sampled_from(["gpu.workload.access", "gpu.workload.utilization", "gpu.workload.compute.time"]),
    st.lists(st.sampled_from(VALUES), min_size=8, max_size=8),
)


@given(st.lists(st.tuples(st.sampled_from(SEATS), COLUMNS, st.sampled_from(Exposition)), min_size=2, max_size=10))
def test_values_may_come_and_go_and_change_in_part_and_are_written_as_if_nothing_were_kept(
    cycles: list[tuple[Series, dict[str, list[float | None]], Exposition]],
) -> None:
    text = PrometheusText(RESOURCES)
    for seats, columns, form in cycles:
        found = [with_gaps(name, seats, column[: len(seats)]) for name, column in columns.items()]
        blocks = tuple(family for family in found if family is not None)
        points = Collection(1, tuple(MetricBlock.of(each.metric, each.points) for each in blocks))
        assert text.render(Collection(1, blocks), form) == render(points, RESOURCES, form)


def test_of_runs_whose_values_stand_the_text_is_the_same_object() -> None:
    text, seats = PrometheusText(RESOURCES), replace(Series.of(ROWS), runs=4)
    told = [
        Collection(1, (MetricBlock(BY_NAME["gpu.workload.access"], seats, values),))
        for values in ((1,) * 8, (1, 1, 1, 2, 1, 1, 1, 1))
    ]
    first, second, again = (text.parts(each, OPENMETRICS) for each in (*told, told[1]))
    assert [before is after for before, after in zip(first, second, strict=True)] == [True, True, False, *[True] * 3]
    assert all(before is after for before, after in zip(second, again, strict=True))
    assert b"".join(second) == render(told[1], RESOURCES, OPENMETRICS)


def test_after_a_value_that_cannot_be_written_everything_is_written_as_before() -> None:
    text = PrometheusText(RESOURCES)
    good, bad = (with_gaps("gpu.workload.access", SEATS[0], values) for values in ((1, 2, 3), (7, 10**400, 8)))
    assert good is not None
    assert bad is not None
    before = text.render(Collection(1, (good,)), TEXT)
    with pytest.raises(OverflowError):
        text.render(Collection(1, (bad,)), TEXT)
    assert text.render(Collection(1, (good,)), TEXT) == before


def test_what_has_ended_is_forgotten() -> None:
    text = PrometheusText(RESOURCES)
    sizes = []
    for cycle in range(50):
        points = [
            Point(
                1,
                {**PLACE, "process.pid": 100 * cycle + n, "process.executable.name": "x"},
                identity(k8s_pod_uid=str(n)),
            )
            for n in range(10)
        ]
        text.render(collection(gpu_process_active=points), TEXT)
        sizes.append(kept(text))
    assert set(sizes) == {30}
    text.render(collection(), TEXT)
    assert kept(text) == 0


def kept(text: PrometheusText) -> int:
    """How many pieces of text are kept for the next rendering."""
    texts = [*text._labels.values(), *chain.from_iterable(text._others.values())]
    return sum(len(lines.series) for lines in text._last.values()) + sum(map(len, texts))


def test_workloads_are_told_apart_by_who_they_are_not_by_the_object() -> None:
    first, same, other = identity(k8s_pod_name="a"), identity(k8s_pod_name="a"), identity(k8s_pod_name="b")
    states: list[tuple[WorkloadIdentity, str]] = [(first, "busy"), (same, "idle"), (other, "idle")]
    points = [Point(1.0, {**PLACE, "gpu.state": state}, who) for who, state in states]
    exposed = render(collection(gpu_workload_time=points), NOWHERE, TEXT)
    found = labels_of(exposed, "gpu_workload_time_seconds_total")
    assert [labels["k8s_pod_name"] for labels in found] == ["a", "a", "b"]


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
def test_the_format_is_the_one_that_the_scraper_likes_best(accept: str, chosen: Exposition) -> None:
    assert choose(accept) is chosen


@given(st.text())
def test_any_header_has_an_answer(accept: str) -> None:
    assert choose(accept) in Exposition
