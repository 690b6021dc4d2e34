"""What ``deploy/`` ships, read by the programs that people read it with: kustomize, Helm, Compose' loader, systemd."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from otel_gpu.config import SETTINGS, load
from otel_gpu.settings_check import check_exports
from tests.cli import clean_environment
from tests.real.collector import validate
from tests.real.parts import needed, needed_program

pytestmark = pytest.mark.real

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm/otel-gpu"
NEEDED: Final = ["SYS_PTRACE", "DAC_READ_SEARCH"]
KUBERNETES: Final = "1.34.0"
"""Helm renders for this; built from its module it believes in an old one."""
KUSTOMIZATIONS: Final = sorted(path.parent for path in DEPLOY.rglob("kustomization.yaml"))

# Ways to use the chart: its README's, and each value at least once.
VALUES: Final[Mapping[str, Any]] = {
    "defaults": {},
    "otlp": {
        "config": {"exporters": "otlp", "otlp-endpoint": "https://gateway.example/v1/metrics", "pod-labels": "team"},
        "extraEnv": [
            {
                "name": "OTEL_EXPORTER_OTLP_HEADERS",
                "valueFrom": {"secretKeyRef": {"name": "gateway", "key": "headers"}},
            }
        ],
        "extraEnvFrom": [{"secretRef": {"name": "more"}}],
    },
    "no-api": {"kubernetesApi": False, "serviceAccount": {"create": False}},
    "k3s": {"sockets": {"runtime": "/run/k3s/containerd"}, "runtimeClassName": ""},
    "api alone": {"sockets": {"runtime": "", "podResources": ""}},
    "accounting": {"accounting": True},
    "mig": {"mig": True, "image": {"digest": f"sha256:{'a' * 64}"}},
    "tls": {
        "config": {"web-config": "/etc/otel-gpu-web/web.yaml", "listen": "[::]:9999"},
        "extraVolumes": [{"name": "web", "secret": {"secretName": "otel-gpu-web"}}],
        "extraVolumeMounts": [{"name": "web", "mountPath": "/etc/otel-gpu-web", "readOnly": True}],
        "livenessProbe": {"httpGet": {"scheme": "HTTPS"}},
        "readinessProbe": None,
    },
    "placed": {
        "nameOverride": "gpu",
        "fullnameOverride": "gpu-agent",
        "image": {"repository": "registry.example/otel-gpu", "tag": "1.0", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "serviceAccount": {"name": "mine", "annotations": {"a": "b"}},
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        "tolerations": [],
        "priorityClassName": "system-node-critical",
        "podAnnotations": {"c": "d"},
        "podLabels": {"e": "f"},
        "prometheusAnnotations": False,
        "resources": {"limits": {"memory": "1Gi"}},
        "updateStrategy": {"type": "OnDelete"},
    },
    "numbers": {
        "config": {"seed": 1234567890, "price-kwh": 0.3, "prometheus": True, "proc-root": "/hp", "node-name": "n 1"}
    },
}  # fmt: skip


@functools.cache
def _programs() -> str | None:
    words = [str(ROOT / "tools/manifests/build.sh"), "--find"]
    return subprocess.run(words, capture_output=True, encoding="utf-8", check=False).stdout.strip() or None


def run(
    program: str, *words: object, text: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run kustomize, helm or manifests to the end."""
    directory = needed(_programs(), "helm, kustomize and manifests", "tools/manifests/build.sh")
    return subprocess.run(
        [directory / program, *map(str, words)],
        input=text, env=clean_environment(environment), capture_output=True, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip


def strictly(text: str) -> list[dict[str, Any]]:
    """The objects in a text, once Kubernetes' own types have taken every field of them."""
    result = run("manifests", "kubernetes", "-", text=text)
    assert (result.returncode, result.stderr) == (0, "")
    objects = [one for one in yaml.safe_load_all(text) if one is not None]
    assert result.stdout.splitlines() == [f"{one['kind']} {one['metadata']['name']}" for one in objects]
    return objects


def built(directory: Path) -> list[dict[str, Any]]:
    result = run("kustomize", "build", directory)
    assert (result.returncode, result.stderr) == (0, "")
    return strictly(result.stdout)


def rendered(directory: Path, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    file = directory / "values.yaml"
    file.write_text(json.dumps(values), encoding="utf-8")
    words = ["template", "gpu", CHART, "--namespace", "mon", "--kube-version", KUBERNETES, "--values", file]
    result = run("helm", *words)
    assert (result.returncode, result.stderr) == (0, "")
    return strictly(result.stdout)


def only(objects: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [one for one in objects if one["kind"] == kind]
    return found


def pods(objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    specs = [one.get("spec", {}) for one in objects]
    return [pod for spec in specs if "containers" in (pod := spec.get("template", {}).get("spec", spec))]


def locked(pod: Mapping[str, Any], *more: str) -> None:
    """Nothing in this pod has more than it needs."""
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]
        agent = [*NEEDED, *more] if pod.get("hostPID", False) else []
        given = {"otel-gpu": agent, "accounting": ["SYS_ADMIN"]}.get(container["name"], [])
        assert context["capabilities"].get("add", []) == given
        assert "privileged" not in context


def variables(pod: Mapping[str, Any]) -> dict[str, Any]:
    [agent] = [one for one in pod["containers"] if one["name"] == "otel-gpu"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in agent["env"]}


def taken(directory: Path, objects: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What the agent makes of its configuration file, which it must take."""
    [text] = [one["data"]["config.yaml"] for one in objects if "config.yaml" in one.get("data", {})]
    file = directory / "config.yaml"
    file.write_text(text, encoding="utf-8")
    loaded = load({"config": str(file)}, {})
    check_exports(loaded)
    return {value.key: value.text for value in loaded.values}


# ---------------------------------------------------------------------------- kustomize


@pytest.mark.parametrize("directory", KUSTOMIZATIONS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_a_kustomization_makes_objects_that_kubernetes_knows_and_that_have_no_more_than_they_need(
    directory: Path,
) -> None:
    found = pods(built(directory))
    assert found
    for pod in found:
        locked(pod, *(["SYS_ADMIN"] if directory.name == "mig" else []))


def test_without_the_api_there_is_neither_a_role_nor_a_token(tmp_path: Path) -> None:
    objects = built(DEPLOY / "kubernetes/overlays/no-api")
    assert not [one for one in objects if "Role" in one["kind"]]
    assert [pod["automountServiceAccountToken"] for pod in pods(objects)] == [False]
    assert taken(tmp_path, objects)["kubernetes-api"] == "never"


@pytest.mark.parametrize(
    ("directory", "runtime"), [("kubernetes/overlays/k3s", "/run/k3s/containerd"), ("openshift", "/run/crio")]
)
def test_another_runtimes_socket_takes_the_place_of_containerds(directory: str, runtime: str) -> None:
    [pod] = pods(built(DEPLOY / directory))
    mounts = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one.get("hostPath", {}).get("path") for one in pod["volumes"]}
    assert volumes[mounts[runtime]] == runtime
    assert "/run/containerd" not in {*mounts, *volumes.values()}


def test_accounting_is_switched_on_by_a_container_of_its_own_and_the_agent_stays_as_it_is(tmp_path: Path) -> None:
    [plain], [pod] = pods(built(DEPLOY / "kubernetes/base")), pods(built(DEPLOY / "kubernetes/overlays/accounting"))
    [first] = pod.pop("initContainers")
    assert pod == plain
    assert (first["image"], first["args"]) == (pod["containers"][0]["image"], ["setup", "accounting"])
    [rendered_pod] = pods(rendered(tmp_path, VALUES["accounting"]))
    [same] = rendered_pod["initContainers"]
    assert {key: same[key] for key in first} == first


def test_the_deployment_is_the_daemonset_on_one_node() -> None:
    daemonset = only(built(DEPLOY / "kubernetes/base"), "DaemonSet")["spec"]["template"]
    spec = only(built(DEPLOY / "kubernetes/deployment"), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert set(spec["template"]["spec"].pop("nodeSelector")) == {"kubernetes.io/hostname"}
    assert spec["template"] == daemonset


def test_with_a_collector_nobody_scrapes_and_the_collector_takes_its_configuration(tmp_path: Path) -> None:
    objects = built(DEPLOY / "kubernetes/overlays/with-collector")
    [agent] = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("DaemonSet", "otel-gpu")]
    assert not agent["spec"]["template"]["metadata"].get("annotations")
    assert taken(tmp_path, objects)["exporters"] == "otlp"
    [text] = [one["data"]["collector.yaml"] for one in objects if "collector.yaml" in one.get("data", {})]
    [settings] = [one["data"] for one in objects if "GATEWAY_ENDPOINT" in one.get("data", {})]
    file = tmp_path / "collector.yaml"
    file.write_text(text, encoding="utf-8")
    result = validate(file, environment=settings | {"K8S_POD_IP": "127.0.0.1", "K8S_NODE_NAME": "node-1"})
    assert (result.returncode, result.stderr) == (0, "")


# ---------------------------------------------------------------------------- Helm


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    result = run("helm", "lint", "--strict", "--kube-version", KUBERNETES, CHART)
    assert result.returncode == 0, result.stdout
    assert "[WARNING]" not in result.stdout + result.stderr


@pytest.mark.parametrize("name", VALUES)
def test_the_chart_makes_objects_that_kubernetes_knows_and_an_agent_that_has_no_more_than_it_needs(
    tmp_path: Path, name: str
) -> None:
    objects = rendered(tmp_path, VALUES[name])
    [pod] = pods(objects)
    locked(pod, *(["SYS_ADMIN"] if name == "mig" else []))
    taken(tmp_path, objects)


def test_the_chart_and_the_kustomization_run_the_same_agent(tmp_path: Path) -> None:
    objects = rendered(tmp_path, {})
    plain = built(DEPLOY / "kubernetes/base")
    assert taken(tmp_path, objects) == taken(tmp_path, plain)
    [ours], [theirs] = pods(objects), pods(plain)
    for key in ("hostPID", "runtimeClassName", "tolerations", "automountServiceAccountToken"):
        assert ours[key] == theirs[key]
    for key in ("args", "ports", "resources", "securityContext", "livenessProbe", "readinessProbe", "volumeMounts"):
        assert ours["containers"][0][key] == theirs["containers"][0][key]
    assert variables(ours) == variables(theirs) | {"HOST_PROC": "/host/proc"}


def test_the_chart_passes_on_what_was_written(tmp_path: Path) -> None:
    objects = rendered(tmp_path, VALUES["numbers"])
    effective = taken(tmp_path, objects)
    assert (effective["seed"], effective["price-kwh"], effective["prometheus"]) == ("1234567890", "0.3", "true")
    [pod] = pods(objects)
    assert (variables(pod)["HOST_PROC"], variables(pod)["K8S_NODE_NAME"]) == ("/hp", "n 1")
    assert "/hp" in {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}


def test_the_chart_takes_every_setting(tmp_path: Path) -> None:
    every = {setting.key: setting.default for setting in SETTINGS}
    objects = rendered(tmp_path, {"config": every})
    [text] = [one["data"]["config.yaml"] for one in objects if "config.yaml" in one.get("data", {})]
    assert yaml.safe_load(text) == every


def test_without_the_api_the_chart_permits_nothing(tmp_path: Path) -> None:
    objects = rendered(tmp_path, VALUES["no-api"])
    assert {one["kind"] for one in objects} == {"ConfigMap", "DaemonSet"}
    assert pods(objects)[0]["automountServiceAccountToken"] is False
    assert taken(tmp_path, objects)["kubernetes-api"] == "never"


@pytest.mark.parametrize(
    "values", ["config.intervall=5s", "image.tag=latest", "sockets.runtime=run", "mig=maybe", "nosuchvalue=1"]
)
def test_a_misspelt_value_is_refused(values: str) -> None:
    result = run("helm", "template", "gpu", CHART, "--kube-version", KUBERNETES, "--set", values)
    assert result.returncode != 0
    assert "schema" in result.stderr


# ---------------------------------------------------------------------------- Compose


def composed(*names: str, **environment: str) -> dict[str, Any]:
    files = [DEPLOY / "compose" / name for name in names]
    result = run("manifests", "compose", *files, environment={"GRAFANA_PASSWORD": "secret", **environment})
    assert (result.returncode, result.stderr) == (0, "")
    services: dict[str, Any] = json.loads(result.stdout)["services"]
    return services


def test_compose_takes_the_project_and_every_file_that_it_mounts_is_there() -> None:
    services = composed("compose.yaml")
    assert set(services) == {"agent", "collector", "prometheus", "grafana"}
    mounts = [one for service in services.values() for one in service["volumes"] if one["type"] == "bind"]
    ours = [path for one in mounts if (path := Path(one["source"])).is_relative_to(ROOT)]
    assert len(ours) == 4
    assert all(path.exists() for path in ours)
    [gpus] = services["agent"]["deploy"]["resources"]["reservations"]["devices"]
    assert (gpus["driver"], gpus["count"]) == ("nvidia", -1)


def test_compose_without_a_gpu_takes_every_privilege_away() -> None:
    agent = composed("compose.yaml", "demo.yaml")["agent"]
    for key in ("pid", "cgroup", "uts", "cap_add", "volumes"):
        assert not agent.get(key)
    assert "reservations" not in agent["deploy"]["resources"]
    assert (agent["user"], agent["cap_drop"], agent["read_only"]) == ("65532:65532", ["ALL"], True)


def test_grafana_is_not_started_without_a_password() -> None:
    result = run("manifests", "compose", DEPLOY / "compose/compose.yaml", environment={"GRAFANA_PASSWORD": ""})
    assert result.returncode != 0
    assert "GRAFANA_PASSWORD" in result.stderr


def test_the_collector_and_prometheus_of_compose_take_their_configurations() -> None:
    services = composed("compose.yaml")
    [mount] = services["collector"]["volumes"]
    result = validate(Path(mount["source"]), environment=services["collector"]["environment"])
    assert (result.returncode, result.stderr) == (0, "")
    promtool = needed_program("promtool", "Debian has it in the package prometheus")
    words = [str(promtool), "check", "config", str(DEPLOY / "compose/prometheus.yaml")]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0


# ---------------------------------------------------------------------------- strictness itself


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
def test_an_object_that_kubernetes_does_not_know_is_refused(text: str) -> None:
    assert run("manifests", "kubernetes", "-", text=text).returncode == 1


def test_a_compose_file_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text("name: a\nservices: {b: {image: c, readonly: true}}\n", encoding="utf-8")
    assert run("manifests", "compose", file).returncode == 1


# ---------------------------------------------------------------------------- systemd

UNIT: Final = "otel-gpu.service"


def installed(root: Path, *drop_ins: str) -> Path:
    """A root directory in which the unit is installed as its README says."""
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
    program = needed_program("systemd-analyze", "Debian has it in the package systemd")
    words = [str(program), verb, f"--root={root}", "--no-pager", *options, UNIT]
    return subprocess.run(words, capture_output=True, encoding="utf-8", timeout=60, check=False)


def verified(root: Path) -> tuple[int, str]:
    # Of this unit alone: systemd's own are not in that root.
    result = systemd_analyze("verify", root, "--recursive-errors=no")
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("drop_ins", [(), ("docker.conf",), ("root.conf",)], ids=str)
def test_systemd_finds_nothing_wrong_with_the_unit_and_it_is_as_safe_as_its_page_says(
    tmp_path: Path, drop_ins: tuple[str, ...]
) -> None:
    root = installed(tmp_path, *drop_ins)
    assert verified(root) == (0, "")
    said = systemd_analyze("security", root, "--offline=true").stdout
    [exposure] = re.findall(rf"Overall exposure level for {UNIT}: ([0-9.]+)", said)
    page = (DEPLOY / "systemd/README.md").read_text(encoding="utf-8")
    name = f"with `{drop_ins[0]}`" if drop_ins else f"`{UNIT}`"
    [recorded] = re.findall(rf"^\| {re.escape(name)} \| ([0-9.]+) \|$", page, re.MULTILINE)
    assert float(exposure) <= float(recorded)


def test_systemd_would_find_what_is_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = installed(tmp_path) / "etc/systemd/system" / UNIT
    unit.write_text(unit.read_text(encoding="utf-8").replace("PrivateTmp=", "PrivateTemp="), encoding="utf-8")
    code, said = verified(tmp_path)
    assert code != 0
    assert "PrivateTemp" in said
