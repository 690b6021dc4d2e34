"""What ``deploy/`` ships, as far as it can be checked without the programs that read it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from otel_gpu.cli import dispatch
from otel_gpu.config import SETTINGS, load
from otel_gpu.config.checks import check_exports
from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.sources.names import candidates
from otel_gpu.state.gap_marker import marker_directories
from otel_gpu.version import __version__

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm/otel-gpu"
COMPOSE: Final = DEPLOY / "compose/compose.yaml"
BASE: Final = DEPLOY / "kubernetes/base"
KEYS: Final = {setting.key for setting in SETTINGS}
VARIABLES: Final = {setting.variable for setting in SETTINGS} | {"OTEL_GPU_CONFIG"}
NEEDED: Final = ["SYS_PTRACE", "DAC_READ_SEARCH"]
"""Capabilities of an agent that sees the processes of others; docs/deployment.md says why."""


class Loader(yaml.SafeLoader):
    """YAML with the tag by which Compose takes something away."""


Loader.add_constructor("!reset", lambda *_: None)


def documents(path: Path) -> list[Any]:
    return [one for one in yaml.load_all(path.read_text(encoding="utf-8"), Loader) if one is not None]


def files(pattern: str) -> list[Path]:
    return [path for path in sorted(DEPLOY.rglob(pattern)) if not path.is_relative_to(CHART / "templates")]


def named(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


# Kept as they are in collector-config/, where they are checked.
COLLECTORS: Final = files("collector.yaml")
MANIFESTS: Final = [
    document
    for path in files("*.yaml")
    for document in documents(path)
    if isinstance(document, dict) and "kind" in document and "metadata" in document
]
CONFIGURATIONS: Final = files("config.yaml")


def pods() -> Iterator[dict[str, Any]]:
    """The pod specs of all manifests."""
    for manifest in MANIFESTS:
        spec = manifest.get("spec", {})
        pod = spec.get("template", {}).get("spec", spec)
        if "containers" in pod:
            yield pod


def on_nodes() -> list[dict[str, Any]]:
    """Pod specs of agents that see their whole node."""
    return [pod for pod in pods() if pod.get("hostPID") and pod["containers"][0]["name"] == "otel-gpu"]


def containers() -> Iterator[dict[str, Any]]:
    for pod in pods():
        yield from pod.get("initContainers", [])
        yield from pod["containers"]


def agents() -> Iterator[dict[str, Any]]:
    return (one for one in containers() if one["name"] == "otel-gpu")


def services() -> dict[str, dict[str, Any]]:
    [project] = documents(COMPOSE)
    found: dict[str, dict[str, Any]] = project["services"]
    return found


@pytest.mark.parametrize("path", files("*.yaml"), ids=named)
def test_a_file_is_yaml(path: Path) -> None:
    assert documents(path)


def test_there_are_manifests_to_check() -> None:
    assert {manifest["kind"] for manifest in MANIFESTS} >= {"DaemonSet", "Deployment", "Pod", "ClusterRole"}
    assert len(list(pods())) >= 4
    assert len(list(agents())) >= 3
    assert len(CONFIGURATIONS) >= 3


# ---------------------------------------------------------------------------- least privilege


def test_every_container_is_restricted() -> None:
    for container in containers():
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["capabilities"].get("add", []) in ([], NEEDED)
        assert "privileged" not in context


def test_every_pod_has_the_runtimes_seccomp_profile_and_decides_about_its_token() -> None:
    for pod in pods():
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert isinstance(pod["automountServiceAccountToken"], bool)
        assert not pod.get("hostNetwork")
        assert not pod.get("hostIPC")


def test_an_agent_can_write_no_mount_of_the_node_except_its_state() -> None:
    own = [{"path": path, "type": "DirectoryOrCreate"} for path in ("/var/lib/otel-gpu", "/run/otel-gpu")]
    for pod in pods():
        of_node = {one["name"] for one in pod.get("volumes", ()) if "hostPath" in one} - {"state", "notes"}
        names = "state", "notes"
        state = [one["hostPath"] for one in pod.get("volumes", ()) if one["name"] in names and "hostPath" in one]
        assert state in ([], own)
        for container in pod["containers"]:
            if container["name"] == "otel-gpu":
                assert all(one["readOnly"] for one in container.get("volumeMounts", ()) if one["name"] in of_node)


def test_the_gap_marker_is_on_the_node_where_the_next_pod_reads_it() -> None:
    [pod] = [pod for pod in pods() if pod["containers"][0]["name"] == "otel-gpu" and pod.get("hostPID")]
    [volume] = [one["hostPath"]["path"] for one in pod["volumes"] if one["name"] == "notes"]
    [mount] = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "notes"]
    variables = {one["name"]: one.get("value", "") for one in pod["containers"][0]["env"]}
    assert mount == {"name": "notes", "mountPath": volume}
    assert Path(volume) in marker_directories(variables)


def test_an_agent_that_sees_only_its_own_pod_has_no_privilege() -> None:
    for pod in pods():
        if not pod.get("hostPID") and "hostPath" not in json.dumps(pod.get("volumes", [])):
            assert pod["securityContext"]["runAsNonRoot"] is True
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                assert "add" not in container["securityContext"]["capabilities"]


def test_in_the_cluster_an_agent_may_only_read_pods() -> None:
    rules = [rule for manifest in MANIFESTS if manifest["kind"] == "ClusterRole" for rule in manifest["rules"]]
    assert rules
    for rule in rules:
        assert set(rule["verbs"]) <= {"get", "list", "watch"}
        assert set(rule["resources"]) <= {"pods", "namespaces"}
    [own] = [one for one in MANIFESTS if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", "otel-gpu")]
    assert own["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


def test_every_role_and_account_of_a_binding_exists() -> None:
    there = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in MANIFESTS}
    bindings = [one for one in MANIFESTS if one["kind"].endswith("RoleBinding")]
    assert len(bindings) == 3
    for binding in bindings:
        assert (binding["roleRef"]["kind"], None, binding["roleRef"]["name"]) in there
        for subject in binding["subjects"]:
            # By its namespace kustomize knows it again, and only so does it follow another one.
            assert (subject["kind"], subject["namespace"], subject["name"]) in there


def test_every_mount_has_its_volume_and_every_volume_is_mounted() -> None:
    for pod in pods():
        each = [*pod.get("initContainers", ()), *pod["containers"]]
        mounts = {one["name"] for container in each for one in container.get("volumeMounts", ())}
        assert mounts == {one["name"] for one in pod.get("volumes", ())}


def test_variables_of_services_are_not_taken_for_settings() -> None:
    """The kubelet sets OTEL_GPU_PORT for a Service named otel-gpu, and EXPORTER_PORT for one named exporter."""
    for pod in pods():
        if pod["containers"][0]["name"] == "otel-gpu":
            assert pod["enableServiceLinks"] is False


def test_an_agent_that_is_not_ready_is_scraped() -> None:
    """/readyz is 503 while the agent is blind (tests/unit/agent/test_agent.py)."""
    found = [manifest for manifest in MANIFESTS if manifest["kind"] == "Service"]
    assert len(found) >= 2
    assert all(service["spec"]["publishNotReadyAddresses"] is True for service in found)
    template = (CHART / "templates/service.yaml").read_text(encoding="utf-8")
    assert "\n  publishNotReadyAddresses: true\n" in template
    [values] = documents(CHART / "values.yaml")
    probes = [values["readinessProbe"], *(one["readinessProbe"] for pod in on_nodes() for one in pod["containers"])]
    assert {probe["httpGet"]["path"] for probe in probes} == {"/readyz"}


def test_the_agent_has_the_same_two_capabilities_everywhere() -> None:
    [scc] = documents(DEPLOY / "openshift/scc.yaml")
    assert scc["allowedCapabilities"] == NEEDED
    assert scc["requiredDropCapabilities"] == ["ALL"]
    assert not any(scc[key] for key in ("allowPrivilegedContainer", "allowPrivilegeEscalation", "allowHostNetwork"))
    assert services()["agent"]["cap_add"] == NEEDED
    unit = (DEPLOY / "systemd/otel-gpu.service").read_text(encoding="utf-8")
    both = " ".join(f"CAP_{name}" for name in NEEDED)
    assert f"\nAmbientCapabilities={both}\nCapabilityBoundingSet={both}\n" in unit


def test_the_unit_starts_the_agent_again_after_every_end_but_a_bad_configuration() -> None:
    """SIGHUP ends the agent with code 0 (tests/e2e/test_pause_and_restart.py), which is no failure."""
    unit = (DEPLOY / "systemd/otel-gpu.service").read_text(encoding="utf-8")
    settings = dict(re.findall(r"^([A-Z][A-Za-z]+)=(.*)$", unit, re.MULTILINE))
    assert settings["Restart"] == "always"
    assert settings["RestartPreventExitStatus"] == str(dispatch.BAD_USAGE)


def test_the_unit_allows_more_descriptors_than_systemds_default() -> None:
    unit = (DEPLOY / "systemd/otel-gpu.service").read_text(encoding="utf-8")
    assert "\nLimitNOFILE=65536\n" in unit


def test_every_service_of_compose_is_locked_down_and_reachable_from_this_host_only() -> None:
    for service in services().values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


# ---------------------------------------------------------------------------- settings


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=named)
def test_the_agent_takes_its_configuration(path: Path) -> None:
    check_exports(load({"config": str(path)}, {}))


def test_the_schema_of_the_chart_has_every_setting_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    config = schema["properties"]["config"]
    assert config["properties"].keys() == KEYS, "run: python tools/manifests/settings.py"
    assert config["additionalProperties"] is False
    stale = subprocess.run([sys.executable, ROOT / "tools/manifests/settings.py", "--check"], check=False)
    assert stale.returncode == 0, "run: python tools/manifests/settings.py"


def test_every_value_of_the_chart_is_in_its_schema_and_is_explained() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    [values] = documents(CHART / "values.yaml")
    assert schema["properties"].keys() - {"global"} == values.keys()
    assert values["config"].keys() <= KEYS
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    assert not [key for key in values if f".Values.{key}" not in templates]
    assert [documents(BASE / "config.yaml")] == [[values["config"]]]


def test_variables_and_flags_that_are_used_are_the_agents_own() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (*files("*"), ROOT / "docs/deployment.md") if path.is_file()]
    used = {name for text in texts for name in re.findall(r"\bOTEL_GPU_[A-Z_]+\b", text)}
    assert used
    assert used <= VARIABLES
    for words in [one["args"] for one in agents()] + [services()["agent"]["command"]]:
        flags = [word.removeprefix("--") for word in words if word.startswith("--")]
        assert set(flags) <= KEYS


# ---------------------------------------------------------------------------- what must agree


def images() -> Iterator[str]:
    yield from (container["image"] for container in containers())
    yield from (service["image"] for service in services().values())


def test_every_image_has_a_version_and_those_of_one_program_the_same() -> None:
    [collector] = re.findall(r"^  version: (.*)$", (ROOT / "tools/collector/manifest.yaml").read_text(), re.MULTILINE)
    for image in images():
        name, _, tag = image.rpartition(":")
        assert name
        assert tag != "latest"
        if name == "otel-gpu":
            assert tag == __version__
        if "opentelemetry-collector" in name:
            assert tag == collector
    texts = [path.read_text(encoding="utf-8") for path in (*files("*.*"), ROOT / "docs/deployment.md")]
    assert {tag for text in texts for tag in re.findall(r"\botel-gpu:([0-9][\w.-]*)", text)} == {__version__}
    [chart] = documents(CHART / "Chart.yaml")
    assert chart["appVersion"] == __version__
    assert services()["agent"]["build"]["args"]["VERSION"] == __version__


@pytest.mark.parametrize("path", COLLECTORS, ids=named)
def test_a_deployed_collector_has_a_checked_configuration(path: Path) -> None:
    checked = {one.read_text(encoding="utf-8") for one in (ROOT / "collector-config").glob("*.yaml")}
    assert path.read_text(encoding="utf-8") in checked, "copy it again from collector-config/"


def test_the_agent_finds_the_sockets_where_they_are_mounted() -> None:
    [pod] = [pod for pod in pods() if pod["containers"][0]["name"] == "otel-gpu" and pod.get("hostPID")]
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one.get("hostPath", {}).get("path") for one in pod["volumes"]}
    [values] = documents(CHART / "values.yaml")
    for name, socket, value in (
        ("runtime", candidates._CONTAINERD, values["sockets"]["runtime"]),
        ("pod-resources", candidates._POD_RESOURCES[0], values["sockets"]["podResources"]),
    ):
        assert mounts[name] == volumes[name] == value == str(Path("/", socket).parent)
    assert (mounts["proc"], volumes["proc"]) == ("/host/proc", "/proc")
    assert "HOST_PROC=/host/proc" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_agents_send_to_the_collector_of_their_own_node() -> None:
    overlay = DEPLOY / "kubernetes/overlays/with-collector"
    [settings] = documents(overlay / "config.yaml")
    [service] = documents(overlay / "service.yaml")
    ports = {str(port["port"]) for port in service["spec"]["ports"]}
    found = re.fullmatch(r"http://([a-z-]+):([0-9]+)", settings["otlp-endpoint"])
    assert found is not None
    assert found[1] == service["metadata"]["name"]
    assert found[2] in ports
    assert service["spec"]["internalTrafficPolicy"] == "Local"


def test_probes_ask_the_port_at_which_the_agent_listens() -> None:
    for agent in agents():
        [port] = [one["containerPort"] for one in agent["ports"] if one["name"] == "metrics"]
        assert port == 9464
        assert agent["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    for path in CONFIGURATIONS:
        assert load({"config": str(path)}, {}).config.web.listen.port == 9464


def test_grafana_finds_its_dashboards_where_they_are_mounted() -> None:
    mounts = {one["target"]: one["source"] for one in services()["grafana"]["volumes"]}
    provisioning = COMPOSE.parent / mounts["/etc/grafana/provisioning"]
    [file] = documents(provisioning / "dashboards/folder.yaml")
    [provider] = file["providers"]
    assert mounts[provider["options"]["path"]] == "${DASHBOARDS:-./dashboards}"
    assert (COMPOSE.parent / "dashboards").is_dir()


# ---------------------------------------------------------------------------- what is written about it


PAGES: Final = [*files("README.md"), ROOT / "docs/deployment.md"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_an_existing_heading(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {one.lower().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", ["README.md", "docs/deployment.md"])
def test_a_container_that_replaces_another_exporter_publishes_its_port(page: str) -> None:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    [(line, name)] = [(line, name) for line in lines for name in re.findall(r"-e OTEL_GPU_COMPAT=([a-z-]+)", line)]
    assert f"-p 127.0.0.1:{EXPORTERS[name].port}:{EXPORTERS[name].port}" in line


def test_every_way_to_deploy_has_a_page() -> None:
    index = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for way in ("kubernetes/base", "kubernetes/deployment", "kubernetes/sidecar", "openshift", "compose", "systemd"):
        assert (DEPLOY / way / "README.md").is_file()
        assert f"({way}/README.md)" in index
    overlays = (DEPLOY / "kubernetes/README.md").read_text(encoding="utf-8")
    for overlay in (DEPLOY / "kubernetes/overlays").iterdir():
        assert f"`{overlay.name}`" in overlays


# ---------------------------------------------------------------------------- the programs that read it

BUILD: Final = ROOT / "tools/manifests/build.sh"
# Notes what it is asked for, and makes an empty program of it.
GO: Final = """#!/bin/sh
for word; do last=$word; done
echo "$last" >>"$ASKED"
[ ! -e "$FAIL" ] || { echo 'go: no such module' >&2; exit 1; }
mkdir -p "$GOBIN"
[ "$last" != . ] || last=manifests
name=${last%@*}; name=${name%/v5}; : >"$GOBIN/${name##*/}"
"""


def test_the_programs_are_built_once_and_never_half(tmp_path: Path) -> None:
    go, asked, fail = tmp_path / "bin/go", tmp_path / "asked", tmp_path / "fail"
    go.parent.mkdir()
    go.write_text(GO, encoding="utf-8")
    go.chmod(0o755)
    variables = {"PATH": f"{go.parent}:/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def build(*words: str) -> subprocess.CompletedProcess[str]:
        ours = variables | {"ASKED": str(asked), "FAIL": str(fail)}
        return subprocess.run([BUILD, *words], env=ours, capture_output=True, encoding="utf-8", check=False)

    missing = build("--find")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "tools/manifests/build.sh" in missing.stderr
    fail.touch()
    failed = build()
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "no such module" in failed.stderr
    assert build("--find").returncode == 1
    fail.unlink()
    first = build()
    assert first.returncode == 0
    assert {"kustomize", "helm", "manifests"} == {path.name for path in Path(first.stdout.strip()).iterdir()}
    before = asked.read_text(encoding="utf-8")
    assert build().stdout == build("--find").stdout == first.stdout
    assert asked.read_text(encoding="utf-8") == before
    assert not list((tmp_path / "cache/otel-gpu").glob("build.*"))
