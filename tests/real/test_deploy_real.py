"""The files in ``deploy/``, read by kustomize and systemd."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.real.collector import validate
from tests.real.manifests import (
    DEPLOY,
    ROOT,
    agent,
    built,
    built_on,
    check_least_privilege,
    check_references,
    constraint,
    declared_ports,
    loaded,
    mounted,
    only,
    parse_strictly,
    pods,
    rendered,
    run,
    settings_of,
    variables,
)
from tests.real.programs import require_program

pytestmark = pytest.mark.real

KUSTOMIZATIONS: Final = sorted(path.parent for path in DEPLOY.rglob("kustomization.yaml"))


# ---------------------------------------------------------------------------- kustomize

BASE: Final = DEPLOY / "kubernetes/base"
OVERLAYS: Final = DEPLOY / "kubernetes/overlays"
OPENSHIFT: Final = DEPLOY / "openshift"
SCC: Final[dict[str, Any]] = yaml.safe_load((OPENSHIFT / "scc.yaml").read_text(encoding="utf-8"))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("directory", KUSTOMIZATIONS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_a_kustomization_builds_valid_objects_with_least_privilege(
    directory: Path,
) -> None:
    objects = built(directory)
    found = pods(objects)
    assert found
    for pod in found:
        check_least_privilege(pod, *(["SYS_ADMIN"] if directory.name == "mig" else []))
    check_references(objects)


@pytest.mark.parametrize(
    "directory",
    [*(one for one in KUSTOMIZATIONS if one.is_relative_to(OVERLAYS)), BASE, OPENSHIFT],
    ids=lambda one: one.name,
)
def test_a_user_can_change_the_namespace_of_all_objects(tmp_path: Path, directory: Path) -> None:
    wanted = {"namespace": "gpu-mon", "resources": [directory.relative_to(ROOT)]}
    own = {**wanted, "resources": [str(one) for one in wanted["resources"]]}
    objects = built_on(tmp_path, own)
    check_references(objects)
    text = json.dumps(objects)
    assert '"namespace": "otel-gpu"' not in text
    assert only(objects, "Namespace")["metadata"]["name"] == "gpu-mon"
    bindings = [one for one in objects if one["kind"].endswith("RoleBinding")]
    subjects = [subject for one in bindings for subject in one["subjects"]]
    assert {subject["namespace"] for subject in subjects} == ({"gpu-mon"} if directory.name != "no-api" else set())


@pytest.mark.parametrize(
    "page", [DEPLOY / "kubernetes/README.md", OPENSHIFT / "README.md"], ids=lambda page: page.parent.name
)
def test_the_kustomization_in_a_readme_can_be_built(tmp_path: Path, page: Path) -> None:
    [text] = blocks(page, "yaml")
    check_references(built_on(tmp_path, yaml.safe_load(text)))


@pytest.mark.parametrize(
    "directory",
    [BASE, OPENSHIFT, *sorted(path for path in OVERLAYS.iterdir() if path.is_dir())],
    ids=lambda one: one.name,
)
def test_declared_ports_are_the_ports_that_the_agent_opens(tmp_path: Path, directory: Path) -> None:
    objects = built(directory)
    ports = declared_ports(tmp_path, objects)
    assert ports == {"metrics": 9464} | ({"dcgm": 9400} if directory.name == "compat" else {})
    [template] = [
        one["spec"]["template"]
        for one in objects
        if one["metadata"]["name"] == "otel-gpu" and "template" in one.get("spec", {})
    ]
    scraped = {} if directory.name == "with-collector" else {"scrape": "true", "port": "9464", "path": "/metrics"}
    annotations = template["metadata"].get("annotations", {})
    assert {key: value for key, value in annotations.items() if key.startswith("prometheus.io/")} == {
        f"prometheus.io/{key}": value for key, value in scraped.items()
    }


def test_the_agent_may_list_and_watch_pods_and_nothing_else() -> None:
    rules = only(built(BASE), "ClusterRole")["rules"]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


def test_without_the_api_the_agent_has_no_role_and_no_token(tmp_path: Path) -> None:
    objects = built(OVERLAYS / "no-api")
    assert not [one for one in objects if "Role" in one["kind"]]
    [pod] = pods(objects)
    [plain] = pods(built(BASE))
    assert pod.pop("automountServiceAccountToken") is False
    assert plain.pop("automountServiceAccountToken") is True
    del pod["volumes"], plain["volumes"]  # with the name of another configuration
    assert pod == plain
    assert settings_of(tmp_path, objects) == settings_of(tmp_path, built(BASE)) | {"kubernetes-api": "never"}


@pytest.mark.parametrize(
    ("directory", "runtime"),
    [(OVERLAYS / "k3s", "/run/k3s/containerd"), (OPENSHIFT, "/run/crio")],
    ids=["k3s", "openshift"],
)
def test_an_overlay_mounts_the_socket_of_another_runtime_instead(directory: Path, runtime: str) -> None:
    [pod], [plain] = pods(built(directory)), pods(built(BASE))
    expected = mounted(plain)
    assert expected.pop("/run/containerd") == "/run/containerd"
    assert mounted(pod) == expected | {runtime: runtime}


def test_accounting_adds_an_init_container_and_leaves_the_agent_unchanged() -> None:
    [plain], [pod] = pods(built(BASE)), pods(built(OVERLAYS / "accounting"))
    [first] = pod.pop("initContainers")
    assert pod == plain
    assert (first["image"], first["args"]) == (pod["containers"][0]["image"], ["setup", "accounting"])
    needs = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    assert {one["name"]: one["value"] for one in first["env"]} == needs
    [rendered_pod] = pods(rendered({"accounting": True}))
    [same] = rendered_pod["initContainers"]
    assert {key: same[key] for key in first} == first


def test_mig_adds_a_capability_and_a_variable_to_the_agent_only() -> None:
    """NVIDIA's runtime requires the variable, whatever the capabilities."""
    [plain], [pod] = pods(built(BASE)), pods(built(OVERLAYS / "mig"))
    assert variables(pod) == variables(plain) | {"NVIDIA_MIG_MONITOR_DEVICES": "all"}
    agent(plain)["securityContext"]["capabilities"]["add"].append("SYS_ADMIN")
    agent(plain)["env"].append({"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"})
    assert pod == plain
    [chart] = pods(rendered({"mig": True}))
    assert agent(chart)["securityContext"] == agent(pod)["securityContext"]


def test_gpu_nodes_are_selected_by_any_of_their_labels() -> None:
    [plain], [pod] = pods(built(BASE)), pods(built(OVERLAYS / "gpu-nodes"))
    terms = pod.pop("affinity")["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert pod == plain
    assert not {"nodeSelector", "affinity"} & plain.keys()
    # Terms are alternatives; all expressions of a term must match.
    assert {len(term["matchExpressions"]) for term in terms} == {1}
    labels = [term["matchExpressions"][0]["key"] for term in terms]
    assert len(labels) == len(set(labels))
    assert "nvidia.com/gpu.present" in labels


def test_replacing_another_exporter_only_adds_its_port(tmp_path: Path) -> None:
    objects = built(OVERLAYS / "compat")
    [plain], [pod] = pods(built(BASE)), pods(objects)
    # kustomize puts the ports of the overlay first.
    assert agent(pod).pop("ports") == [{"name": "dcgm", "containerPort": 9400}, *agent(plain).pop("ports")]
    del pod["volumes"], plain["volumes"]  # with the name of another configuration
    assert pod == plain
    assert settings_of(tmp_path, objects) == settings_of(tmp_path, built(BASE)) | {"compat": "dcgm-exporter:9400"}
    service = only(objects, "Service")
    assert [port["port"] for port in service["spec"]["ports"]] == [9400]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["metadata"]["annotations"]["prometheus.io/port"] == "9400"


def test_the_deployment_runs_the_daemonsets_pod_on_one_node() -> None:
    daemonset = only(built(BASE), "DaemonSet")["spec"]["template"]
    spec = only(built(DEPLOY / "kubernetes/deployment"), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert set(spec["template"]["spec"].pop("nodeSelector")) == {"kubernetes.io/hostname"}
    assert spec["template"] == daemonset


def test_with_a_collector_the_agent_pushes_and_the_collector_accepts_its_configuration(tmp_path: Path) -> None:
    objects = built(OVERLAYS / "with-collector")
    config = loaded(tmp_path, objects).config
    assert settings_of(tmp_path, objects)["exporters"] == "otlp"
    [text] = [one["data"]["collector.yaml"] for one in objects if "collector.yaml" in one.get("data", {})]
    [settings] = [one["data"] for one in objects if "GATEWAY_ENDPOINT" in one.get("data", {})]
    file = tmp_path / "collector.yaml"
    file.write_text(text, encoding="utf-8")
    result = validate(file, environment=settings | {"K8S_POD_IP": "127.0.0.1", "K8S_NODE_NAME": "node-1"})
    assert (result.returncode, result.stderr) == (0, "")
    [collector] = [one["containers"][0] for one in pods(objects) if one["containers"][0]["name"] == "collector"]
    assert {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in collector["env"]} == {
        "K8S_POD_IP": "status.podIP",
        "K8S_NODE_NAME": "spec.nodeName",
    }
    mounts = {one["mountPath"] for one in collector["volumeMounts"]}
    [file_of] = [word.removeprefix("--config=") for word in collector["args"]]
    assert str(Path(file_of).parent) in mounts
    queues = {one["directory"] for key, one in yaml.safe_load(text)["extensions"].items() if "file_storage" in key}
    assert {str(Path(queue.rpartition(":-")[2].rstrip("}")).parent) for queue in queues} == mounts - {"/etc/otelcol"}
    service = only(objects, "Service")
    [port] = [one["port"] for one in service["spec"]["ports"] if one["name"] == "otlp-grpc"]
    assert str(config.export.otlp.endpoint) == f"http://{service['metadata']['name']}:{port}"
    assert service["spec"]["internalTrafficPolicy"] == "Local"


# ---------------------------------------------------------------------------- OpenShift


def shown(scc: dict[str, Any]) -> dict[str, Any]:
    """A constraint with the fields of ``constraint`` only."""
    listed = ("allowedCapabilities", "requiredDropCapabilities", "volumes")
    fields = constraint(pods(built(OPENSHIFT))[0])
    return {key: sorted(scc[key]) if key in listed else scc[key] for key in fields}


def test_the_constraint_allows_exactly_what_the_pod_requests() -> None:
    [pod] = pods(built(OPENSHIFT))
    assert shown(SCC) == constraint(pod)
    assert agent(pod)["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert not [
        SCC[key] for key in ("users", "groups", "defaultAddCapabilities", "defaultAllowPrivilegeEscalation") if SCC[key]
    ]
    # The pod requests no group, but these fields are required.
    assert SCC["fsGroup"] == SCC["supplementalGroups"] == {"type": "RunAsAny"}
    assert SCC["priority"] is None
    assert parse_strictly(json.dumps(SCC)) == [SCC]
    assert "namespace" not in SCC["metadata"]


def test_the_agents_account_may_use_the_constraint_that_its_pod_requires() -> None:
    objects = built(OPENSHIFT)
    name = SCC["metadata"]["name"]
    rule = {
        "apiGroups": ["security.openshift.io"],
        "resources": ["securitycontextconstraints"],
        "resourceNames": [name],
        "verbs": ["use"],
    }
    assert only(objects, "Role")["rules"] == [rule]
    daemonset = only(objects, "DaemonSet")["spec"]["template"]
    assert daemonset["metadata"]["annotations"]["openshift.io/required-scc"] == name
    [subject] = only(objects, "RoleBinding")["subjects"]
    assert subject["name"] == daemonset["spec"]["serviceAccountName"]


@pytest.mark.parametrize("overlay", ["accounting", "mig"])
def test_the_constraint_does_not_allow_overlays_with_sys_admin(overlay: str) -> None:
    [pod] = pods(built(OVERLAYS / overlay))
    asked = constraint(pod)["allowedCapabilities"]
    assert set(asked) - set(SCC["allowedCapabilities"]) == {"SYS_ADMIN"}
    assert f"`{overlay}`" in (OPENSHIFT / "README.md").read_text(encoding="utf-8")


def test_the_patch_in_the_readme_allows_exactly_what_the_mig_overlay_requests(tmp_path: Path) -> None:
    page = OPENSHIFT / "README.md"
    [own] = blocks(page, "yaml")
    [pod] = pods(built_on(tmp_path, yaml.safe_load(own)))
    [words] = [shlex.split(text) for text in blocks(page, "sh") if "oc patch" in text]
    [operation] = json.loads(words[words.index("-p") + 1])
    assert words[:4] == ["oc", "patch", "scc", SCC["metadata"]["name"]]
    assert (operation["op"], operation["path"]) == ("add", "/allowedCapabilities/-")
    patched = SCC | {"allowedCapabilities": [*SCC["allowedCapabilities"], operation["value"]]}
    assert shown(patched) == constraint(pod)
    assert variables(pod)["NVIDIA_MIG_MONITOR_DEVICES"] == "all"


# ---------------------------------------------------------------------------- strict parsing


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [], hostPid: true}\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nmetadata: {name: b}\n",
        "apiVersion: v1\nkind: Nothing\nmetadata: {name: a}\n",
        "# nothing\n",
    ],
    ids=["a field of another case", "a field twice", "no such kind", "empty"],
)
def test_an_invalid_object_is_rejected(text: str) -> None:
    assert run("manifests", "kubernetes", "-", text=text).returncode == 1


# ---------------------------------------------------------------------------- systemd

UNIT: Final = "otel-gpu.service"


def installed(root: Path, *drop_ins: str) -> Path:
    """A root directory with the unit installed as in its README."""
    units = root / "etc/systemd/system"
    program = root / "opt/otel-gpu/bin/otel-gpu"
    (units / f"{UNIT}.d").mkdir(parents=True)
    program.parent.mkdir(parents=True)
    shutil.copy("/bin/true", program)
    shutil.copy(DEPLOY / "systemd" / UNIT, units)
    for name in drop_ins:
        shutil.copy(DEPLOY / "systemd" / name, units / f"{UNIT}.d")
    return root


def systemd_analyze(verb: str, root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = require_program("systemd-analyze", "Debian has it in the package systemd")
    words = [str(program), verb, f"--root={root}", "--no-pager", *options, UNIT]
    return subprocess.run(words, capture_output=True, encoding="utf-8", timeout=60, check=False)


def verified(root: Path) -> tuple[int, str]:
    # This unit only: systemd's own units are not in that root.
    result = systemd_analyze("verify", root, "--recursive-errors=no")
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("drop_ins", [(), ("docker.conf",), ("root.conf",)], ids=str)
def test_systemd_accepts_the_unit_and_its_exposure_is_as_documented(tmp_path: Path, drop_ins: tuple[str, ...]) -> None:
    root = installed(tmp_path, *drop_ins)
    assert verified(root) == (0, "")
    output = systemd_analyze("security", root, "--offline=true").stdout
    [exposure] = re.findall(rf"Overall exposure level for {UNIT}: ([0-9.]+)", output)
    page = (DEPLOY / "systemd/README.md").read_text(encoding="utf-8")
    name = f"with `{drop_ins[0]}`" if drop_ins else f"`{UNIT}`"
    [recorded] = re.findall(rf"^\| {re.escape(name)} \| ([0-9.]+) \|$", page, re.MULTILINE)
    assert float(exposure) <= float(recorded)


def test_systemd_rejects_an_unknown_setting_of_the_unit(tmp_path: Path) -> None:
    unit = installed(tmp_path) / "etc/systemd/system" / UNIT
    unit.write_text(unit.read_text(encoding="utf-8").replace("PrivateTmp=", "PrivateTemp="), encoding="utf-8")
    code, output = verified(tmp_path)
    assert code != 0
    assert "PrivateTemp" in output
