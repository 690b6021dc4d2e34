"""The objects in ``deploy/``, rendered by kustomize and Helm and read with Kubernetes' types, and rules for them."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

from otel_gpu.config import Loaded, load
from otel_gpu.config.checks import check_exports
from tests.cli import clean_environment
from tests.real.programs import require

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm/otel-gpu"
NEEDED: Final = ["SYS_PTRACE", "DAC_READ_SEARCH"]
KUBERNETES: Final = "1.34.0"
"""The version that Helm renders for; a Helm built from its module assumes an old one."""
CLUSTER_WIDE: Final = {"Namespace", "ClusterRole", "ClusterRoleBinding", "SecurityContextConstraints"}

Object = dict[str, Any]


@functools.cache
def _programs() -> str | None:
    words = [str(ROOT / "tools/manifests/build.sh"), "--find"]
    return subprocess.run(words, capture_output=True, encoding="utf-8", check=False).stdout.strip() or None


def run(
    program: str, *words: object, text: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run kustomize, helm or manifests."""
    directory = require(_programs(), "helm, kustomize and manifests", "tools/manifests/build.sh")
    return subprocess.run(
        [directory / program, *map(str, words)],
        input=text, env=clean_environment(environment), capture_output=True, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip


def parse_strictly(text: str) -> list[Object]:
    """The objects in a text, after Kubernetes' types have accepted every field."""
    result = run("manifests", "kubernetes", "-", text=text)
    assert (result.returncode, result.stderr) == (0, "")
    objects = [one for one in yaml.safe_load_all(text) if one is not None]
    assert result.stdout.splitlines() == [f"{one['kind']} {one['metadata']['name']}" for one in objects]
    return objects


def built(directory: Path) -> list[Object]:
    """A copy of the objects that kustomize builds from a directory."""
    return deepcopy(_built(directory))


@functools.cache
def _built(directory: Path) -> list[Object]:
    result = run("kustomize", "build", directory)
    assert (result.returncode, result.stderr) == (0, "")
    return parse_strictly(result.stdout)


def built_on(directory: Path, kustomization: Mapping[str, Any]) -> list[Object]:
    """The objects of a user's kustomization, whose resources are paths below the root of the repository."""
    bases = [os.path.relpath(ROOT / one, directory.resolve()) for one in kustomization["resources"]]
    text = json.dumps(dict(kustomization) | {"resources": bases})
    (directory / "kustomization.yaml").write_text(text, encoding="utf-8")
    return built(directory)


def template(
    values: Mapping[str, Any], release: str = "gpu", namespace: str = "mon"
) -> subprocess.CompletedProcess[str]:
    """Run ``helm template``."""
    words = ["template", release, CHART, "--namespace", namespace, "--kube-version", KUBERNETES, "--values", "-"]
    return run("helm", *words, text=json.dumps(values))


def rendered(values: Mapping[str, Any], release: str = "gpu", namespace: str = "mon") -> list[Object]:
    """A copy of the objects that the chart renders with these values."""
    return deepcopy(_rendered(json.dumps(values), release, namespace))


@functools.cache
def _rendered(values: str, release: str, namespace: str) -> list[Object]:
    result = template(json.loads(values), release, namespace)
    assert (result.returncode, result.stderr) == (0, "")
    return parse_strictly(result.stdout)


def only(objects: Sequence[Object], kind: str) -> Object:
    """The only object of a kind."""
    [found] = [one for one in objects if one["kind"] == kind]
    return found


def workloads(objects: Sequence[Object]) -> list[Object]:
    """Pods, and objects with a pod template."""
    return [one for one in objects if "containers" in _pod(one)]


def _pod(owner: Object) -> Object:
    spec = owner.get("spec", {})
    found: Object = spec.get("template", {}).get("spec", spec)
    return found


def pods(objects: Sequence[Object]) -> list[Object]:
    """The pod specs."""
    return [_pod(one) for one in workloads(objects)]


def containers(pod: Mapping[str, Any]) -> list[Object]:
    """The containers of a pod, including init containers."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def agent(pod: Mapping[str, Any]) -> Object:
    """The agent's container."""
    [found] = [one for one in containers(pod) if one["name"] == "otel-gpu"]
    return found


def variables(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's variables."""
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in agent(pod)["env"]}


def mounted(pod: Mapping[str, Any]) -> dict[str, str]:
    """Host paths by their mount path in the agent's container."""
    of_node = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    return {one["mountPath"]: of_node[one["name"]] for one in agent(pod)["volumeMounts"] if one["name"] in of_node}


def loaded(directory: Path, objects: Sequence[Object]) -> Loaded:
    """The agent's configuration from its ConfigMap."""
    [text] = [one["data"]["config.yaml"] for one in objects if "config.yaml" in one.get("data", {})]
    file = directory / "config.yaml"
    file.write_text(text, encoding="utf-8")
    found = load({"config": str(file)}, {})
    check_exports(found)
    return found


def settings_of(directory: Path, objects: Sequence[Object]) -> dict[str, str]:
    """Every setting with its value from the configuration file."""
    return {value.key: value.text for value in loaded(directory, objects).values}


# ---------------------------------------------------------------------------- rules


def check_least_privilege(pod: Mapping[str, Any], *more: str) -> None:
    """Check that no container has more privileges than it needs; ``more`` are capabilities of this variant."""
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(pod):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]
        agents = [*NEEDED, *more] if pod.get("hostPID", False) else []
        allowed = {"otel-gpu": agents, "accounting": ["SYS_ADMIN"]}.get(container["name"], [])
        assert context["capabilities"].get("add", []) == allowed
        assert "privileged" not in context


def check_references(objects: Sequence[Object]) -> None:
    """Check that every object that another one refers to exists."""
    places = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects}
    assert len(places) == len(objects)
    assert len({namespace for kind, namespace, _ in places if kind not in CLUSTER_WIDE}) == 1
    assert {namespace for kind, namespace, _ in places if kind in CLUSTER_WIDE} <= {None}
    for one in objects:
        if one["kind"].endswith("RoleBinding"):
            _check_binding(one, places)
        if one["kind"] == "Service":
            _check_service(one, objects)
    # Every service account is used by a pod.
    used = {pod.get("serviceAccountName") for pod in pods(objects)}
    assert {name for kind, _, name in places if kind == "ServiceAccount"} <= used
    for owner in workloads(objects):
        namespace = owner["metadata"].get("namespace")
        for name in _configurations(_pod(owner)):
            assert ("ConfigMap", namespace, name) in places
        account = _pod(owner).get("serviceAccountName", "default")
        assert account == "default" or ("ServiceAccount", namespace, account) in places
        if owner["kind"] != "Pod":
            wanted = owner["spec"]["selector"]["matchLabels"]
            assert wanted.items() <= owner["spec"]["template"]["metadata"]["labels"].items()
        _check_pod(_pod(owner))


def _check_binding(binding: Object, places: set[tuple[str, str | None, str]]) -> None:
    role, namespace = binding["roleRef"], binding["metadata"].get("namespace")
    assert (role["kind"], None if role["kind"] == "ClusterRole" else namespace, role["name"]) in places
    assert binding["subjects"]
    for subject in binding["subjects"]:
        assert (subject["kind"], subject["namespace"], subject["name"]) in places


def _check_service(service: Object, objects: Sequence[Object]) -> None:
    wanted = service["spec"]["selector"].items()
    [selected] = [
        _pod(one) for one in workloads(objects)
        if wanted <= one["spec"].get("template", one)["metadata"].get("labels", {}).items()
    ]  # fmt: skip
    open_ports = {port["name"]: port["containerPort"] for one in containers(selected) for port in one.get("ports", ())}
    for port in service["spec"]["ports"]:
        assert open_ports[port["targetPort"]] == port["port"]


def _configurations(pod: Mapping[str, Any]) -> list[str]:
    of_volumes = [one["configMap"]["name"] for one in pod.get("volumes", ()) if "configMap" in one]
    sources = [source for one in containers(pod) for source in one.get("envFrom", ())]
    return of_volumes + [one["configMapRef"]["name"] for one in sources if "configMapRef" in one]


def _check_pod(pod: Mapping[str, Any]) -> None:
    """Check that volumes are mounted, names are unique and probes use a declared port."""
    volumes = [one["name"] for one in pod.get("volumes", ())]
    mounts = [one["name"] for each in containers(pod) for one in each.get("volumeMounts", ())]
    assert len(volumes) == len(set(volumes))
    assert set(volumes) == set(mounts)
    ports = [port for one in containers(pod) for port in one.get("ports", ())]
    for key in ("name", "containerPort"):
        assert len({port[key] for port in ports}) == len(ports)
    for one in containers(pod):
        for key in ("name", "mountPath"):
            names = [each[key] for each in one.get({"name": "env"}.get(key, "volumeMounts"), ())]
            assert len(names) == len(set(names))
        own = {port["name"] for port in one.get("ports", ())}
        probes = [one[key] for key in ("livenessProbe", "readinessProbe", "startupProbe") if key in one]
        assert {probe["httpGet"]["port"] for probe in probes} <= own


def declared_ports(directory: Path, objects: Sequence[Object]) -> dict[str, int]:
    """The agent's ports by name, after checking that they are the ports that its configuration opens."""
    [pod] = [one for one in pods(objects) if any(each["name"] == "otel-gpu" for each in containers(one))]
    config = loaded(directory, objects).config
    opened = {"metrics": config.web.listen.port}
    opened |= {one.exporter.removesuffix("-exporter"): one.address.port for one in config.compat.listeners}
    declared = {port["name"]: port["containerPort"] for port in agent(pod)["ports"]}
    assert declared == opened
    assert config.web.listen.host in ("0.0.0.0", "::")
    return declared


def constraint(pod: Mapping[str, Any]) -> Object:
    """The narrowest OpenShift security context constraint that admits this pod."""
    contexts = [one["securityContext"] for one in containers(pod)]
    kinds = {kind for one in pod["volumes"] for kind in one if kind != "name"}
    if pod["automountServiceAccountToken"]:
        kinds.add("projected")  # the volume of the token
    [user] = {context["runAsUser"] for context in contexts}
    is_confined = not any("seLinuxOptions" in context for context in contexts)
    ports = [port for one in containers(pod) for port in one.get("ports", ())]
    return {
        "allowHostPID": pod.get("hostPID", False),
        "allowHostIPC": pod.get("hostIPC", False),
        "allowHostNetwork": pod.get("hostNetwork", False),
        "allowHostPorts": any("hostPort" in port for port in ports),
        "allowHostDirVolumePlugin": "hostPath" in kinds,
        "allowPrivilegedContainer": any(context.get("privileged", False) for context in contexts),
        "allowPrivilegeEscalation": any(context["allowPrivilegeEscalation"] for context in contexts),
        "readOnlyRootFilesystem": all(context["readOnlyRootFilesystem"] for context in contexts),
        "allowedCapabilities": sorted({one for context in contexts for one in context["capabilities"].get("add", ())}),
        "requiredDropCapabilities": sorted({one for context in contexts for one in context["capabilities"]["drop"]}),
        "runAsUser": {"type": "MustRunAs", "uid": user},
        "seLinuxContext": {"type": "MustRunAs" if is_confined else "RunAsAny"},
        "seccompProfiles": [{"RuntimeDefault": "runtime/default"}[pod["securityContext"]["seccompProfile"]["type"]]],
        "volumes": sorted(kinds),
    }
