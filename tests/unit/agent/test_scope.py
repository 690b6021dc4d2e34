from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.agent.engine import Engine, narrowed
from otel_gpu.agent.host import open_host, open_procfs
from otel_gpu.agent.resources import host_resources
from otel_gpu.clock import ManualClock
from otel_gpu.config import load
from otel_gpu.doctor.findings import Finding, Verdict
from otel_gpu.doctor.visibility import check_pod_scope
from otel_gpu.errors import UsageError
from otel_gpu.export.document import document
from otel_gpu.metrics.catalogue import METRICS, Level, Metric
from otel_gpu.metrics.rows import report_rows
from otel_gpu.model import (
    HOST_WORKLOAD,
    DriverFacts,
    GpuHealth,
    Pod,
    Report,
    SourceState,
    UtilizationRead,
    UtilizationRow,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)
from otel_gpu.sources.base import ProcessRead
from otel_gpu.sources.proc.host import OwnPod, find_own_pod
from tests.builders import (
    CONTAINER,
    CONTAINER_ID,
    GIB,
    FakeGpus,
    FakeProcesses,
    attribution,
    by_pid,
    facts,
    gpu,
    gpu_read,
    listed,
    memory,
    mig,
    process_read,
)
from tests.proc_tree import ProcTree
from tests.tables import render
from tests.unit.compat import series
from tests.unit.metrics.builders import answer, device, part, points_of, process, workload

UID = "40934a46-d409-4f4a-bb8b-1ec0b0436320"
OTHER_UID = "019c1fe8-0d92-4aa0-b61c-4df58bdde71c"
STATIC_UID = "187bff14cccb94f179e943eacce55bb3"
OWN = Pod("pod-uid")
"""The pod of the containers in tests.builders."""
PRIVATE = 4026532000
MINE = WorkloadRef(WorkloadKind.CONTAINER, "a" * 64, pod_uid=UID)
THEIRS = WorkloadRef(WorkloadKind.CONTAINER, "b" * 64, pod_uid=OTHER_UID)


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    """The ``/proc`` of a container with a private cgroup namespace, which does not show its pod."""
    tree = ProcTree(tmp_path / "proc")
    tree.set_namespaces(pid=PRIVATE, cgroup=PRIVATE)
    tree.write("self/cgroup", "0::/\n")
    return tree


# ---------------------------------------------------------------------------- the agent's own pod


def test_the_cgroup_identifies_the_pod_before_any_variable(proc: ProcTree) -> None:
    proc.write("self/cgroup", f"0::/kubepods/burstable/pod{UID}/{'a' * 64}\n")
    own = find_own_pod({"POD_UID": OTHER_UID, "POD_NAME": "train", "POD_NAMESPACE": "ml"}, proc.root)
    assert own == OwnPod(Pod(UID, "train", "ml"), f"{proc.root}/self/cgroup")


@pytest.mark.parametrize(
    ("environment", "own"),
    [
        ({"POD_UID": UID}, OwnPod(Pod(UID), "POD_UID")),
        ({"POD_UID": "", "K8S_POD_UID": STATIC_UID}, OwnPod(Pod(STATIC_UID), "K8S_POD_UID")),
        (
            {"POD_NAME": "train", "POD_NAMESPACE": "ml"},
            OwnPod(Pod(None, "train", "ml"), "POD_NAME and POD_NAMESPACE"),
        ),
        (
            {"K8S_POD_NAME": "train", "K8S_NAMESPACE_NAME": "ml"},
            OwnPod(Pod(None, "train", "ml"), "K8S_POD_NAME and K8S_NAMESPACE_NAME"),
        ),
    ],
)
def test_variables_identify_the_pod_where_the_cgroup_does_not(
    proc: ProcTree, environment: Mapping[str, str], own: OwnPod
) -> None:
    assert find_own_pod(environment, proc.root) == own


@pytest.mark.parametrize("environment", [{}, {"POD_NAME": "train"}, {"POD_NAMESPACE": "ml"}, {"POD_UID": " "}])
def test_an_unknown_pod_is_one_line_that_says_what_to_set(proc: ProcTree, environment: Mapping[str, str]) -> None:
    with pytest.raises(
        UsageError, match=r"scope is 'pod'.*set POD_UID .*metadata\.uid.* or POD_NAME and POD_NAME"
    ) as no:
        find_own_pod(environment, proc.root)
    assert "\n" not in str(no.value)


def test_variables_identify_the_pod_without_proc(tmp_path: Path) -> None:
    assert find_own_pod({"POD_UID": UID}, tmp_path / "nowhere").pod == Pod(UID)


@pytest.mark.parametrize("text", ["train-0", UID.upper(), f"{UID}/..", "0" * 31])
def test_an_invalid_uid_is_refused(proc: ProcTree, text: str) -> None:
    with pytest.raises(UsageError, match=r"POD_UID: '.*' is not a pod uid; use metadata\.uid"):
        find_own_pod({"POD_UID": text}, proc.root)


def test_a_host_is_opened_for_a_pod_only_with_scope_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    found = "otel_gpu.agent.host.find_own_pod"
    monkeypatch.setattr(found, lambda environment: OwnPod(Pod(environment["POD_UID"]), "test"))
    monkeypatch.setenv("POD_UID", UID)
    pods = [open_host(load({"source": "sim", "scope": s}, {}).config, ManualClock()).pod for s in ("pod", "node")]
    assert pods == [Pod(UID), None]


# ---------------------------------------------------------------------------- which workloads are in it


NAMED = WorkloadNames(pod="train", namespace="ml")


@pytest.mark.parametrize(
    ("pod", "ref", "names", "is_in"),
    [
        (Pod(UID), MINE, None, True),
        (Pod(UID), THEIRS, None, False),
        (Pod(UID), replace(MINE, pod_uid=None), NAMED._replace(pod_uid=UID), True),
        (Pod(UID), replace(MINE, pod_uid=None), None, False),
        (Pod(None, "train", "ml"), MINE, NAMED, True),
        (Pod(None, "train", "ml"), MINE, NAMED._replace(namespace="other"), False),
        (Pod(None, "train", "ml"), MINE, None, False),
        (Pod(UID, "train", "ml"), THEIRS, NAMED, False),  # a name may be used again; a uid is not
        (Pod(UID, "train", "ml"), replace(MINE, pod_uid=None), NAMED, True),
        (Pod(UID), HOST_WORKLOAD, None, False),
        (Pod(), replace(MINE, pod_uid=None), WorkloadNames(), False),
    ],
)
def test_a_workload_is_in_a_pod_by_uid_or_else_by_name(
    pod: Pod, ref: WorkloadRef, names: WorkloadNames | None, is_in: bool
) -> None:
    assert pod.has(ref, names) is is_in


def test_with_shared_pids_containers_beside_the_agent_are_in_its_pod(proc: ProcTree) -> None:
    proc.set_own_pids()
    proc.add(20, cgroup=f"0::/../cri-containerd-{'a' * 64}.scope\n")
    proc.add(21, cgroup=f"0::/../../kubepods-pod{OTHER_UID.replace('-', '_')}.slice/cri-containerd-{'b' * 64}.scope\n")
    config = load({"proc-root": str(proc.root)}, {}).config
    source = open_procfs(config, ManualClock(), one_shot=True, pod=Pod(UID), own_proc=proc.root)
    read = source.read([20, 21])
    assert [read.processes[pid].workload.pod_uid for pid in (20, 21)] == [UID, OTHER_UID]
    assert (read.state, read.reason, read.all_visible) == (SourceState.OK, None, False)


# ---------------------------------------------------------------------------- the narrowed Report


def test_a_report_is_narrowed_to_the_pod_and_its_gpus() -> None:
    whole = attribution()
    own = narrowed(whole, OWN)
    assert [w.ref for w in own.workloads] == [CONTAINER]
    assert {p.key.pid for p in own.processes} == {100}
    assert [g.identity for g in own.gpus] == [whole.gpus[0].identity]
    [before] = [w for w in whole.workloads if w.ref == CONTAINER]
    assert own.workloads == (before,)  # with all figures
    assert (own.sources, own.driver, own.wall_ns) == (whole.sources, whole.driver, whole.wall_ns)


def test_only_the_mig_instances_of_the_pod_are_reported() -> None:
    instances = [mig(f"MIG-{n}", (n, 0), [listed(n, GIB)], memory=memory(total_gib=10, used_gib=4)) for n in (1, 2)]
    reading = gpu(0, [], memory=memory(), mig=instances)
    engine = Engine(
        gpus=FakeGpus(gpu_read(reading)),
        processes=FakeProcesses(process_read(facts(1, MINE), facts(2, THEIRS))),
        clock=ManualClock(),
        pod=Pod(UID),
    )
    own = engine.sample()
    assert document(own)["gpus"][0]["mig"] == [
        {"uuid": "MIG-1", "profile": "1g.10gb", "memory": dict.fromkeys(document(own)["gpus"][0]["memory"])}
    ]
    assert [p.mig_uuid for p in own.processes] == ["MIG-1"]


@pytest.mark.parametrize("health", GpuHealth)
def test_a_narrowed_gpu_keeps_its_health_and_the_reason(health: GpuHealth) -> None:
    whole = attribution()
    reading = replace(whole.gpus[0].reading, health=health, reason="a reason")
    own = narrowed(replace(whole, gpus=(whole.gpus[0]._replace(reading=reading),)), OWN)
    assert [(gpu.reading.health, gpu.reading.reason) for gpu in own.gpus] == [(health, "a reason")]
    watched = {row.is_watched for row in report_rows(own).workloads}
    assert watched == {health is not GpuHealth.PAUSED}


def test_old_and_new_names_of_the_pods_workloads_are_kept_with_their_processes() -> None:
    renamed = [workload(part(), ref=MINE, naming=number, names=NAMED) for number in (0, 1)]
    processes = [process(1, ref=MINE, naming=1), process(2, ref=MINE, naming=0), process(3, ref=THEIRS)]
    own = narrowed(answer(device(), workloads=renamed, processes=processes), Pod(None, "train", "ml"))
    assert [w.naming for w in own.workloads] == [0, 1]
    assert [p.key.pid for p in own.processes] == [1, 2]


def test_a_narrowed_gpu_keeps_whether_energy_and_utilization_are_counted() -> None:
    reading = replace(attribution().gpus[0].reading, utilization=WORKS)
    counting = attribution().gpus[0]._replace(reading=reading, has_utilization=True)
    silent = device()
    for each in (counting, silent):
        own = narrowed(answer(each, workloads=[workload(part())]), OWN)
        assert (own.gpus[0].has_energy, own.gpus[0].has_utilization) == (each.has_energy, each.has_utilization)
        narrow, whole = (
            report_rows(report).workloads[0] for report in (own, answer(each, workloads=[workload(part())]))
        )
        assert (narrow.has_energy, narrow.has_utilization) == (whole.has_energy, whole.has_utilization)
    assert (counting.has_energy, counting.has_utilization) == (True, True)
    assert (silent.has_energy, silent.has_utilization) == (False, False)


WORKS = UtilizationRead(0, 0, (UtilizationRow(100, 1, 50, 20, 0, 0),))


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_exported_for_a_pod_exactly_if_it_is_declared_so(metric: Metric) -> None:
    whole = points_of(metric.name, attribution())
    own = points_of(metric.name, narrowed(attribution(), OWN))
    about_gpus = metric.level is Level.DEVICE or ("hw.id" in metric.keys and metric.level is Level.AGENT)
    assert metric.of_pod is not about_gpus
    if metric.name == "otel_gpu.series":
        assert own[0].value < whole[0].value
    elif metric.of_pod and metric.level is Level.AGENT:
        assert own == whole
    elif metric.of_pod:
        assert own == [point for point in whole if ("gpu.workload.id", CONTAINER_ID) in identity(point)]
    else:
        assert own == []


def identity(point: Any) -> tuple[tuple[str, str], ...]:
    found: tuple[tuple[str, str], ...] = point.workload.attributes
    return found


def test_every_gpu_figure_is_null_in_the_document_and_its_keys_stay() -> None:
    whole, own = (document(each) for each in (attribution(), narrowed(attribution(), OWN)))
    assert own.keys() == whole.keys()
    [gpu_] = own["gpus"]
    assert gpu_.keys() == whole["gpus"][0].keys()
    assert {key: gpu_[key] for key in ("index", "uuid", "name")} == {
        key: whole["gpus"][0][key] for key in ("index", "uuid", "name")
    }
    nested = [value for key in ("memory", "energy") for value in gpu_[key].values()]
    assert {*nested, gpu_["power_w"], gpu_["utilization"], gpu_["temperature_c"]} == {None}
    assert json.loads(json.dumps(own)) == own


def test_the_table_has_no_gpus_and_names_the_pod() -> None:
    own = narrowed(attribution(), OWN)
    lines = render(own).splitlines()
    assert lines[0].endswith("pod pod-uid  driver 570.124.06")
    assert not any("TEMP" in line or "ollama" in line for line in lines)
    assert any("vllm-chat" in line for line in lines)
    empty = render(narrowed(attribution(), Pod(UID)))
    assert "No workload of this pod uses a GPU" in empty
    assert "No process of this pod uses a GPU" in empty


def test_compat_exporters_show_only_the_pods_containers_and_processes() -> None:
    whole, own = attribution(), narrowed(attribution(), OWN)
    used = series.values("gpu-inference", "container_gpu_memory_bytes", own, "container_id", "method")
    assert [(CONTAINER_ID.startswith(id_), method) for id_, method in used] == [(True, "nvidia-smi")]
    assert series.lines("gpu-inference", "gpu_memory_total_bytes", whole)
    for name, family in (
        ("gpu-inference", "gpu_memory_total_bytes"),
        ("gpu-inference", "gpu_inference_active"),
        ("my-gpu-exporter", "my_gpu_process_gpu_energy_joules_total"),
        ("my-gpu-exporter", "my_gpu_process_gpu_process_count"),
        ("gpu-idle-exporter", "gpu_idle_device_power_watts"),
        ("container-gpu-exporter", "power_usage"),
        ("dcgm-exporter", "DCGM_FI_DEV_GPU_TEMP"),
        ("dcgm-exporter", "DCGM_FI_DEV_POWER_USAGE"),
        ("dcgm-exporter", "DCGM_FI_DEV_GPU_UTIL"),
        ("dcgm-exporter", "DCGM_FI_DEV_FB_FREE"),
    ):
        assert series.lines(name, family, own) == []
    used_mib = series.values("dcgm-exporter", "DCGM_FI_DEV_FB_USED", own, "pod")
    assert used_mib == {"vllm-chat-0": 54 * 1024}


def test_agents_of_several_pods_on_one_host_are_several_instances(tmp_path: Path) -> None:
    def instance(pod: Pod | None) -> str:
        made = host_resources(service_name="s", given={}, environment={"NODE_NAME": "n"}, etc=tmp_path, pod=pod)
        return made.agent["service.instance.id"]

    assert len({instance(None), instance(Pod(UID)), instance(Pod(OTHER_UID))}) == 3
    assert instance(Pod(UID)) == instance(Pod(UID))


# ---------------------------------------------------------------------------- inference


def hidden(*, all_visible: bool, pod: Pod | None) -> Report:
    """A Report with memory that no list explains and a process of one pod that has the GPU open."""
    read = ProcessRead(by_pid(facts(1, MINE, opens=[0], uvm=True)), pids_complete=all_visible, all_visible=all_visible)
    engine = Engine(
        gpus=FakeGpus(gpu_read(gpu(0, [], memory=memory(used_gib=10), energy_mj=0))),
        processes=FakeProcesses(read),
        clock=ManualClock(),
        pod=pod,
    )
    return engine.sample()


@pytest.mark.parametrize(
    ("all_visible", "pod", "inferred"),
    [(True, Pod(UID), 10 * GIB), (False, Pod(UID), None), (False, None, 10 * GIB), (True, None, 10 * GIB)],
)
def test_memory_is_inferred_for_a_pod_only_if_all_processes_are_visible(
    all_visible: bool, pod: Pod | None, inferred: int | None
) -> None:
    [found] = hidden(all_visible=all_visible, pod=pod).workloads
    assert found.gpus[0].inferred_bytes == inferred
    assert (found.gpus[0].confidence is None) is (inferred is None)


@pytest.mark.parametrize(
    ("denied", "hosts", "all_visible"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_all_processes_are_visible_in_the_hosts_proc_if_open_files_may_be_read(
    proc: ProcTree, monkeypatch: pytest.MonkeyPatch, denied: bool, hosts: bool, all_visible: bool
) -> None:
    proc.add(2, comm=b"kthreadd" if hosts else b"python3", ppid=0)
    proc.add(3)
    if denied:
        from otel_gpu.sources.proc.files import ProcessDir  # noqa: PLC0415

        def named_devices(self: ProcessDir, *_: object) -> object:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(ProcessDir, "named_devices", named_devices)
    config = load({"proc-root": str(proc.root)}, {}).config
    read = open_procfs(config, ManualClock(), one_shot=True, pod=Pod(UID), own_proc=proc.root).read([3])
    assert read.all_visible is all_visible


# ---------------------------------------------------------------------------- doctor


def examined(own: OwnPod, driver: str, read: ProcessRead) -> dict[str, Finding]:
    gpus = replace(gpu_read(gpu(0, [listed(1)])), driver=DriverFacts(driver))
    return {finding.subject: finding for finding in check_pod_scope(own, gpus, read)}


WHOLE_HOST = process_read(facts(1, MINE), facts(2, THEIRS))
CONTAINED = replace(WHOLE_HOST, pids_complete=False, all_visible=False)
KNOWN = OwnPod(Pod(UID), "POD_UID")


def test_doctor_shows_the_scope_with_the_pod_and_its_origin() -> None:
    found = examined(KNOWN, "570.124.06", CONTAINED)
    assert found["scope"] == Finding("scope", Verdict.OK, f"pod: {UID} (from POD_UID)")
    assert found["pid namespace"].verdict is Verdict.OK
    assert found["pod"].found == "1 process of the pod seen on GPUs"
    assert found["inference"].found.startswith("off: ")
    assert examined(KNOWN, "570.124.06", WHOLE_HOST)["inference"].verdict is Verdict.OK


def test_a_pod_known_by_name_only_is_degraded() -> None:
    found = examined(OwnPod(Pod(None, "train", "ml"), "POD_NAME and POD_NAMESPACE"), "570.124.06", CONTAINED)
    assert found["scope"].verdict is Verdict.DEGRADED
    assert "ml/train" in found["scope"].found
    assert "metadata.uid" in (found["scope"].fix or "")
    assert "pod" not in found


@pytest.mark.parametrize(
    ("driver", "verdict"),
    [("550.54.15", Verdict.BLIND), ("565.57.01", Verdict.DEGRADED), ("570.86.15", Verdict.OK), ("", Verdict.BLIND)],
)
def test_in_a_private_pid_namespace_the_verdict_depends_on_the_driver(driver: str, verdict: Verdict) -> None:
    found = examined(KNOWN, driver, CONTAINED)["pid namespace"]
    assert found.verdict is verdict
    assert (found.fix is None) is (verdict is Verdict.OK)


def test_a_pod_without_visible_processes_gets_a_fix() -> None:
    found = examined(OwnPod(Pod(STATIC_UID), "POD_UID"), "570.86.15", CONTAINED)["pod"]
    assert found.verdict is Verdict.UNUSED
    assert "shareProcessNamespace: true" in (found.fix or "")
