"""The Helm chart, rendered by Helm: the effect of every value, and the validity of the result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from otel_gpu.config import SETTINGS
from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.version import __version__
from tests.real.manifests import (
    CHART,
    DEPLOY,
    KUBERNETES,
    agent,
    built,
    check_least_privilege,
    check_references,
    containers,
    declared_ports,
    mounted,
    only,
    pods,
    rendered,
    run,
    settings_of,
    template,
    variables,
)

pytestmark = pytest.mark.real

DIGEST: Final = f"sha256:{'a' * 64}"
ENVIRONMENT: Final = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
AFFINITY: Final[Mapping[str, Any]] = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
}
EXTRA: Final[dict[str, Any]] = {
    "extraVolumes": [{"name": "web", "secret": {"secretName": "w"}}],
    "extraVolumeMounts": [{"name": "web", "mountPath": "/w", "readOnly": True}],
}

TEMPLATE: Final = ("DaemonSet", "spec", "template")
ANNOTATIONS: Final = (*TEMPLATE, "metadata", "annotations")
POD: Final = (*TEMPLATE, "spec")
AGENT: Final = (*POD, "containers", "otel-gpu")
FIRST: Final = (*POD, "initContainers", "accounting")
MOUNTS: Final = (*AGENT, "volumeMounts")
VOLUMES: Final = (*POD, "volumes")
NAME: Final = ("metadata", "name")
ALERTS: Final = "PrometheusRule/gpu-otel-gpu-alerts"
SUMS: Final = "PrometheusRule/gpu-otel-gpu-recording"
FLEET: Final = "ConfigMap/gpu-otel-gpu-dashboard-fleet"
LABELS: Final = ("metadata", "labels")

# The effect of each value: the value, the path of a field, and the field's content; None is absent.
EFFECTS: Final[Sequence[tuple[str, Any, tuple[str, ...], Any]]] = (
    ("image.repository", "r.example/gpu", (*AGENT, "image"), f"r.example/gpu:{__version__}"),
    ("image.tag", "1e3", (*AGENT, "image"), "otel-gpu:1e3"),
    ("image.digest", DIGEST, (*AGENT, "image"), f"otel-gpu@{DIGEST}"),
    ("image.pullPolicy", "Always", (*AGENT, "imagePullPolicy"), "Always"),
    ("imagePullSecrets", [{"name": "pull"}], (*POD, "imagePullSecrets"), [{"name": "pull"}]),
    ("nameOverride", "other", ("DaemonSet", *NAME), "gpu-other"),
    ("nameOverride", "other", ("DaemonSet", "spec", "selector", "matchLabels", "app.kubernetes.io/name"), "other"),
    ("fullnameOverride", "1e3", ("DaemonSet", *NAME), "1e3"),
    ("fullnameOverride", "1e3", ("ConfigMap", *NAME), "1e3"),
    ("fullnameOverride", "1e3", ("ClusterRole", *NAME), "1e3"),
    ("fullnameOverride", "1e3", ("ServiceAccount", *NAME), "1e3"),
    ("config.listen", "[::]:9999", (*ANNOTATIONS, "prometheus.io/port"), "9999"),
    ("config.listen", "[::]:9999", (*AGENT, "ports"), [{"name": "metrics", "containerPort": 9999}]),
    ("config.compat", "dcgm-exporter", (*AGENT, "ports", "dcgm"), {"name": "dcgm", "containerPort": 9400}),
    ("config.exporters", "otlp", (*ANNOTATIONS, "prometheus.io/scrape"), None),
    ("config.proc-root", "/h p", (*AGENT, "env", "HOST_PROC", "value"), "/h p"),
    ("config.proc-root", "/h p", (*MOUNTS, "proc", "mountPath"), "/h p"),
    ("config.node-name", "n 1", (*AGENT, "env", "K8S_NODE_NAME"), {"name": "K8S_NODE_NAME", "value": "n 1"}),
    ("runtimeClassName", "1e3", (*POD, "runtimeClassName"), "1e3"),
    ("runtimeClassName", "", (*POD, "runtimeClassName"), None),
    ("sockets.runtime", "/run/k3s/containerd", (*MOUNTS, "runtime", "mountPath"), "/run/k3s/containerd"),
    ("sockets.runtime", "/run/k3s/containerd", (*VOLUMES, "runtime", "hostPath", "path"), "/run/k3s/containerd"),
    ("sockets.runtime", "", (*MOUNTS, "runtime"), None),
    ("sockets.podResources", "/data/pod-resources", (*MOUNTS, "pod-resources", "mountPath"), "/data/pod-resources"),
    ("sockets.podResources", "/d", (*VOLUMES, "pod-resources", "hostPath", "path"), "/d"),
    ("sockets.podResources", "", (*MOUNTS, "pod-resources"), None),
    ("stateDir", "/data/gpu", (*MOUNTS, "state", "mountPath"), "/data/gpu"),
    ("stateDir", "/data/gpu", (*VOLUMES, "state", "hostPath"), {"path": "/data/gpu", "type": "DirectoryOrCreate"}),
    ("stateDir", "/data/gpu", (*AGENT, "env", "OTEL_GPU_STATE_DIR", "value"), "/data/gpu"),
    ("stateDir", "", (*AGENT, "env", "OTEL_GPU_STATE_DIR", "value"), "none"),
    ("stateDir", "", (*MOUNTS, "state"), None),
    ("kubernetesApi", False, (*POD, "automountServiceAccountToken"), False),
    ("kubernetesApi", False, ("ClusterRole",), None),
    ("kubernetesApi", False, ("ClusterRoleBinding",), None),
    ("serviceAccount.create", False, ("ServiceAccount",), None),
    ("serviceAccount.create", False, (*POD, "serviceAccountName"), "default"),
    ("serviceAccount.name", "mine", ("ServiceAccount", *NAME), "mine"),
    ("serviceAccount.name", "mine", (*POD, "serviceAccountName"), "mine"),
    ("serviceAccount.name", "mine", ("ClusterRoleBinding", "subjects", "mine", "namespace"), "mon"),
    ("serviceAccount.annotations", {"a": True}, ("ServiceAccount", "metadata", "annotations"), {"a": "true"}),
    ("mig", True, (*AGENT, "env", "NVIDIA_MIG_MONITOR_DEVICES", "value"), "all"),
    ("accounting", True, (*FIRST, "args"), ["setup", "accounting"]),
    ("prometheusAnnotations", False, (*ANNOTATIONS, "prometheus.io/scrape"), None),
    ("prometheusAnnotations", False, (*ANNOTATIONS, "prometheus.io/port"), None),
    ("podAnnotations", {"c": "d"}, (*ANNOTATIONS, "c"), "d"),
    ("podAnnotations", {"prometheus.io/port": 9400}, (*ANNOTATIONS, "prometheus.io/port"), "9400"),
    ("podLabels", {"e": 1000000}, (*TEMPLATE, "metadata", "labels", "e"), "1000000"),
    ("podLabels", {"helm.sh/chart": "mine"}, (*TEMPLATE, "metadata", "labels", "helm.sh/chart"), "mine"),
    ("service.create", True, ("Service", "spec", "ports", "metrics", "port"), 9464),
    ("service.create", True, ("Service", "spec", "publishNotReadyAddresses"), True),
    ("prometheusRule.create", True, (ALERTS, *NAME), "gpu-otel-gpu-alerts"),
    ("prometheusRule.create", True, (SUMS, *NAME), "gpu-otel-gpu-recording"),
    ("dashboards.create", True, (FLEET, *LABELS, "grafana_dashboard"), "1"),
    ("livenessProbe", {"httpGet": {"scheme": "HTTPS"}}, (*AGENT, "livenessProbe", "httpGet", "scheme"), "HTTPS"),
    ("livenessProbe", None, (*AGENT, "livenessProbe"), None),
    ("readinessProbe", {"httpGet": {"scheme": "HTTPS"}}, (*AGENT, "readinessProbe", "httpGet", "scheme"), "HTTPS"),
    ("readinessProbe", None, (*AGENT, "readinessProbe"), None),
    ("resources", {"limits": {"memory": "1Gi"}}, (*AGENT, "resources", "limits", "memory"), "1Gi"),
    ("tolerations", [{"key": "k", "operator": "Exists"}], (*POD, "tolerations"), [{"key": "k", "operator": "Exists"}]),
    ("tolerations", [], (*POD, "tolerations"), None),
    ("nodeSelector", {"gpu": True}, (*POD, "nodeSelector"), {"gpu": "true"}),
    ("affinity", AFFINITY, (*POD, "affinity"), AFFINITY),
    ("priorityClassName", "1e3", (*POD, "priorityClassName"), "1e3"),
    ("updateStrategy", {"type": "OnDelete"}, ("DaemonSet", "spec", "updateStrategy", "type"), "OnDelete"),
    ("extraEnv", [ENVIRONMENT], (*AGENT, "env", "A"), ENVIRONMENT),
    ("extraEnvFrom", [{"secretRef": {"name": "more"}}], (*AGENT, "envFrom"), [{"secretRef": {"name": "more"}}]),
    ("extraVolumes", EXTRA, (*VOLUMES, "web"), EXTRA["extraVolumes"][0]),
    ("extraVolumeMounts", EXTRA, (*MOUNTS, "web"), EXTRA["extraVolumeMounts"][0]),
)  # fmt: skip

# Effects of several values together.
TOGETHER: Final[Sequence[tuple[Mapping[str, Any], tuple[str, ...], Any]]] = (
    ({"accounting": True, "resources": {"limits": {"memory": "1Gi"}}},
     (*FIRST, "resources", "limits", "memory"), "1Gi"),
    ({"accounting": True, "image": {"digest": DIGEST}}, (*FIRST, "image"), f"otel-gpu@{DIGEST}"),
    ({"accounting": True, "image": {"pullPolicy": "Never"}}, (*FIRST, "imagePullPolicy"), "Never"),
    ({"service": {"create": True, "annotations": {"prometheus.io/port": 9400}}},
     ("Service", "metadata", "annotations"), {"prometheus.io/port": "9400"}),
    ({"service": {"create": True}, "config": {"compat": "gpu-idle-exporter:9900"}},
     ("Service", "spec", "ports", "gpu-idle"), {"name": "gpu-idle", "port": 9900, "targetPort": "gpu-idle"}),
    ({"prometheusRule": {"create": True, "labels": {"release": 1}}}, (ALERTS, *LABELS, "release"), "1"),
    ({"prometheusRule": {"create": True, "labels": {"release": 1}}},
     (SUMS, *LABELS, "app.kubernetes.io/instance"), "gpu"),
    ({"prometheusRule": {"create": True, "runbookBase": "https://wiki.example/"}},
     (ALERTS, "spec", "groups", "otel-gpu-hardware", "rules", "GpuLost", "annotations", "runbook_url"),
     "https://wiki.example/docs/alerts.md#gpulost"),
    ({"dashboards": {"create": True, "namespace": "grafana"}}, (FLEET, "metadata", "namespace"), "grafana"),
    ({"dashboards": {"create": True, "labels": {"grafana_dashboard": True}}},
     (FLEET, *LABELS, "grafana_dashboard"), "true"),
    ({"dashboards": {"create": True, "annotations": {"grafana_folder": "G: #1"}}},
     (FLEET, "metadata", "annotations"), {"grafana_folder": "G: #1"}),
    ({"config": {"exporters": "otlp", "prometheus": True}}, (*ANNOTATIONS, "prometheus.io/scrape"), "true"),
    ({"serviceAccount": {"create": False, "name": "there"}}, (*POD, "serviceAccountName"), "there"),
)  # fmt: skip


def spread(key: str, value: Any) -> dict[str, Any]:
    """The values of ``a.b`` as a tree; ``EXTRA`` is a tree already."""
    if value is EXTRA:
        return dict(EXTRA)
    first, _, rest = key.partition(".")
    return {first: {rest: value} if rest else value}


def found(objects: Sequence[Mapping[str, Any]], path: tuple[str, ...]) -> Any:
    """The content of a field, or ``None``. Entries of a list are selected by name.

    A path begins with an object's kind, or ``kind/name``.
    """
    kind, _, name = path[0].partition("/")
    at: Any = next((one for one in objects if one["kind"] == kind and name in ("", one["metadata"]["name"])), None)
    for key in path[1:]:
        if isinstance(at, list):
            at = next((one for one in at if key in (one.get("name"), one.get("alert"))), None)
        elif at is not None:
            at = at.get(key)
    return at


def leaves(values: Mapping[str, Any]) -> Iterator[str]:
    """Every value except those of ``config``."""
    for key, value in values.items():
        if key in ("image", "sockets", "serviceAccount", "service", "prometheusRule", "dashboards"):
            yield from (f"{key}.{name}" for name in value)
        elif key != "config":
            yield key


@pytest.mark.parametrize(("key", "value", "path", "expected"), EFFECTS)
def test_a_value_has_its_effect(key: str, value: Any, path: tuple[str, ...], expected: Any) -> None:
    assert found(rendered({}), path) != expected, "the value has no effect"
    objects = rendered(spread(key, value))
    assert found(objects, path) == expected
    if key != "serviceAccount.create":  # the account is created elsewhere
        check_references(objects)


@pytest.mark.parametrize(("values", "path", "expected"), TOGETHER)
def test_values_have_their_effect_together(values: Mapping[str, Any], path: tuple[str, ...], expected: Any) -> None:
    assert found(rendered({}), path) != expected or "exporters" in str(values)
    assert found(rendered(values), path) == expected


def test_every_value_of_the_chart_is_tested() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    nested = [one for together, *_ in TOGETHER for one in together.items() if isinstance(one[1], Mapping)]
    tested = {key for key, *_ in EFFECTS} | (
        {f"{key}.{name}" for key, inner in nested for name in inner} & set(leaves(values))
    )
    assert {key for key in tested if not key.startswith("config.")} == set(leaves(values))


# ---------------------------------------------------------------------------- as a whole


def test_helm_lint_has_no_complaint() -> None:
    result = run("helm", "lint", "--strict", "--kube-version", KUBERNETES, CHART)
    assert result.returncode == 0, result.stdout
    assert "[WARNING]" not in result.stdout + result.stderr


def examples() -> list[Any]:
    """The values in the chart's README."""
    page = (CHART / "README.md").read_text(encoding="utf-8")
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("values", [{}, *examples()], ids=json.dumps)
def test_examples_of_the_readme_render_an_agent_with_least_privilege(tmp_path: Path, values: Mapping[str, Any]) -> None:
    objects = rendered(values)
    [pod] = pods(objects)
    check_least_privilege(pod)
    check_references(objects)
    declared_ports(tmp_path, objects)


@pytest.mark.parametrize(("values", "more"), [({"mig": True}, ["SYS_ADMIN"]), ({"accounting": True}, [])])
def test_only_mig_adds_a_capability_to_the_agent(values: Mapping[str, Any], more: Sequence[str]) -> None:
    [pod], [plain] = pods(rendered(values)), pods(rendered({}))
    check_least_privilege(pod, *more)
    if not more:
        del pod["initContainers"]
        assert pod == plain


def test_the_chart_and_the_kustomization_run_the_same_agent(tmp_path: Path) -> None:
    objects, plain = rendered({}), built(DEPLOY / "kubernetes/base")
    assert settings_of(tmp_path, objects) == settings_of(tmp_path, plain)
    [ours], [theirs] = pods(objects), pods(plain)
    assert variables(ours) == variables(theirs) | {"HOST_PROC": "/host/proc"}
    assert mounted(ours) == mounted(theirs)
    assert agent(ours).pop("imagePullPolicy") == "IfNotPresent"
    for pod in (ours, theirs):
        del agent(pod)["env"], pod["serviceAccountName"]  # the name contains the release
        [config] = [one for one in pod["volumes"] if "configMap" in one]
        del config["configMap"]["name"]
    assert ours == theirs
    assert only(objects, "ClusterRole")["rules"] == only(plain, "ClusterRole")["rules"]
    assert only(objects, "DaemonSet")["spec"]["updateStrategy"] == only(plain, "DaemonSet")["spec"]["updateStrategy"]


def test_the_chart_has_unchanged_rules_and_dashboards_if_enabled() -> None:
    values = {"prometheusRule": {"create": True}, "dashboards": {"create": True}}
    objects, plain = rendered(values), rendered({})
    check_references(objects)
    added = [one for one in objects if one not in plain]
    rules = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (DEPLOY / "prometheus/rules").iterdir()}
    boards = {path.stem: path.read_text("utf-8") for path in (DEPLOY / "compose/dashboards").glob("*.json")}
    assert len(rules) == 2
    assert len(boards) == 4
    assert {one["metadata"]["name"]: one["spec"] for one in added if one["kind"] == "PrometheusRule"} == {
        f"gpu-otel-gpu-{name}": content for name, content in rules.items()
    }
    assert {one["metadata"]["name"]: one["data"] for one in added if one["kind"] == "ConfigMap"} == {
        f"gpu-otel-gpu-dashboard-{name}": {f"otel-gpu-{name}.json": text} for name, text in boards.items()
    }
    assert len(added) == len(rules) + len(boards)


def test_runbook_links_begin_with_the_configured_base() -> None:
    values = {"prometheusRule": {"create": True, "runbookBase": "https://wiki.example/otel-gpu/"}}
    [spec] = [one["spec"] for one in rendered(values) if one["metadata"]["name"] == "gpu-otel-gpu-alerts"]
    links = [rule["annotations"]["runbook_url"] for group in spec["groups"] for rule in group["rules"]]
    assert "https://wiki.example/otel-gpu/docs/alerts.md#gpulost" in links
    assert all(each.startswith("https://wiki.example/otel-gpu/docs/alerts.md#") for each in links)


# ---------------------------------------------------------------------------- settings


def test_the_chart_passes_on_settings_unchanged(tmp_path: Path) -> None:
    values = {"seed": 1234567890, "price-kwh": 0.3, "prometheus": True, "node-name": "a: #b"}
    effective = settings_of(tmp_path, rendered({"config": values}))
    assert [effective[key] for key in values] == ["1234567890", "0.3", "true", "a: #b"]


def test_the_chart_accepts_every_setting() -> None:
    every = {setting.key: setting.default for setting in SETTINGS}
    objects = rendered({"config": every})
    [text] = [one["data"]["config.yaml"] for one in objects if "config.yaml" in one.get("data", {})]
    assert yaml.safe_load(text) == every


def test_a_changed_configuration_restarts_the_pods() -> None:
    path = (*ANNOTATIONS, "checksum/config")
    checksums = {
        found(rendered(values), path)
        for values in ({}, {"config": {"interval": "9s"}}, {"config": {"interval": "8s"}}, {"kubernetesApi": False})
    }
    assert len(checksums) == 4
    assert None not in checksums
    assert found(rendered({"mig": True}), path) in checksums


def test_without_the_api_the_chart_creates_no_role_and_no_account(tmp_path: Path) -> None:
    objects = rendered({"kubernetesApi": False, "serviceAccount": {"create": False}})
    assert {one["kind"] for one in objects} == {"ConfigMap", "DaemonSet"}
    assert settings_of(tmp_path, objects)["kubernetes-api"] == "never"


@pytest.mark.parametrize("name", EXPORTERS)
def test_the_port_of_a_replaced_exporter_has_a_name(tmp_path: Path, name: str) -> None:
    """On the pod and on the Service, with that exporter's own port or another one; Kubernetes accepts the name."""
    other = EXPORTERS[name].port + 1
    for compat, port in ((name, EXPORTERS[name].port), (f" {name}:{other} ,", other)):
        objects = rendered({"config": {"compat": compat}, "service": {"create": True}})
        check_references(objects)
        short = name.removesuffix("-exporter")
        assert declared_ports(tmp_path, objects) == {"metrics": 9464, short: port}
        assert len(short) <= 15
        assert {one["name"] for one in only(objects, "Service")["spec"]["ports"]} == {"metrics", short}


# ---------------------------------------------------------------------------- odd values

ODD: Final = "/run/a b,{c}: 'd' \"e\" #f \\g"


def test_unusual_values_are_quoted_correctly() -> None:
    path = ODD.replace(":", "")
    values = {
        "sockets": {"runtime": path, "podResources": "/null"},
        "stateDir": "",
        "podAnnotations": {"a": ODD, "true": False, "prometheus.io/path": "/x: #y", "n": 1e6, "f": 0.5},
        "podLabels": {"app.kubernetes.io/version": "1e3", "null": "null"},
        "nodeSelector": {"a": "yes"},
        "runtimeClassName": "null",
        "priorityClassName": "true",
        "image": {"repository": "123", "tag": "456"},
        "config": {"node-name": ODD, "proc-root": "/1e3"},
        "serviceAccount": {"name": "0x10"},
        "service": {"create": True, "annotations": {"a": ODD}},
        "accounting": True,
    }  # fmt: skip
    objects = rendered(values, "123", "456")
    daemonset = only(objects, "DaemonSet")
    pod, metadata = daemonset["spec"]["template"]["spec"], daemonset["spec"]["template"]["metadata"]
    own = ("/run/otel-gpu", "/etc/machine-id")
    assert mounted(pod) == {path: path, "/null": "/null", "/1e3": "/proc"} | {each: each for each in own}
    annotations = {"a": ODD, "true": "false", "prometheus.io/path": "/x: #y", "n": "1000000", "f": "0.5"}
    assert annotations.items() <= metadata["annotations"].items()
    assert metadata["annotations"]["prometheus.io/port"] == "9464"
    assert {"app.kubernetes.io/version": "1e3", "null": "null"}.items() <= metadata["labels"].items()
    assert metadata["labels"]["app.kubernetes.io/instance"] == "123"
    assert [pod[key] for key in ("runtimeClassName", "priorityClassName")] == ["null", "true"]
    assert {one["image"] for one in containers(pod)} == {"123:456"}
    assert variables(pod)["K8S_NODE_NAME"] == ODD
    assert only(objects, "ServiceAccount")["metadata"]["name"] == "0x10"
    assert only(objects, "Service")["metadata"]["annotations"] == {"a": ODD}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("config.intervall", "5s"),
        ("image.tag", "latest"),
        ("image.tag", "a b"),
        ("image.repository", "a@b"),
        ("sockets.runtime", "run"),
        ("sockets.runtime", "/run/../etc"),
        ("sockets.podResources", "/a:b"),
        ("sockets.podResources", "/a\nb"),
        ("mig", "maybe"),
        ("nosuchvalue", 1),
        ("runtimeClassName", "A b"),
        ("priorityClassName", "-a"),
        ("fullnameOverride", "a.b"),
        ("nameOverride", "A"),
        ("serviceAccount.name", "a/b"),
        ("podLabels", {"app.kubernetes.io/name": "mine"}),
        ("podLabels", {"app.kubernetes.io/instance": "mine"}),
        ("podLabels", {"a": {"b": "c"}}),
        ("podAnnotations", {"checksum/config": "mine"}),
        ("nodeSelector", {"a": ["b"]}),
        ("service", {"type": "LoadBalancer"}),
        ("prometheusRule", {"labels": {"a": ["b"]}}),
        ("prometheusRule", {"runbookBase": "wiki"}),
        ("dashboards", {"namespace": "A"}),
    ],
)
def test_an_invalid_value_is_rejected(key: str, value: Any) -> None:
    result = template(spread(key, value))
    assert result.returncode != 0
    assert "schema" in result.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listen", "0.0.0.0:http"),
        ("listen", "0.0.0.0:0"),
        ("listen", "0.0.0.0:65536"),
        ("compat", "dcgm"),
        ("compat", "dcgm-exporter:x"),
        ("compat", "dcgm-exporter:1:2"),
    ],
)
def test_an_invalid_port_is_rejected(key: str, value: str) -> None:
    result = template({"config": {key: value}})
    assert result.returncode != 0
    assert f"config.{key}" in result.stderr
    assert "allowed is" in result.stderr
