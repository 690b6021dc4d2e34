"""Every way to install the agent, over all of ``deploy/``: read-only root, no new privileges, no capability more.

Rendered charts and built kustomizations are checked with the real programs (tests/real); this needs none of them, and
finds a container wherever one is written: in a manifest, a patch inside of a text, a template, a unit, a Dockerfile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
AGENT: Final = frozenset({"SYS_PTRACE", "DAC_READ_SEARCH"})
ADMIN: Final = frozenset({"SYS_ADMIN"})
"""The driver's test of an administrator: for accounting mode, once, and to monitor MIG instances of others."""


class Container(NamedTuple):
    """A container, or what a patch says of one, and where that stands."""

    where: str
    name: str
    context: Mapping[str, Any] | None
    image: str | None


class Loader(yaml.SafeLoader):
    """YAML with the tag by which Compose takes something away."""


Loader.add_constructor("!reset", lambda *_: None)


def without_templates(text: str) -> str:
    """A chart's template as YAML: what only directs is left out, what is filled in becomes a word."""
    lines = [line for line in text.splitlines() if not re.fullmatch(r"\s*\{\{.*\}\}\s*", line)]
    return re.sub(r"\{\{.*?\}\}", "x", "\n".join(lines))


def trees() -> Iterator[tuple[str, Any]]:
    """Everything that is YAML under ``deploy/``, and the patches that stand in it as text."""
    for path in sorted(DEPLOY.rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        if "templates" in path.parts:
            text = without_templates(text)
        where = str(path.relative_to(DEPLOY))
        for document in yaml.load_all(text, Loader):
            yield where, document
            for patch in document.get("patches", ()) if isinstance(document, dict) else ():
                if isinstance(patch, dict) and "patch" in patch:
                    yield f"{where} (patch)", yaml.load(patch["patch"], Loader)


def containers(where: str, tree: Any) -> Iterator[Container]:
    """Every entry of a list called ``containers`` or ``initContainers``, however deep."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key in ("containers", "initContainers", "ephemeralContainers") and isinstance(value, list):
                for one in value:
                    yield Container(where, one["name"], one.get("securityContext"), one.get("image"))
            yield from containers(where, value)
    elif isinstance(tree, list):
        for one in tree:
            yield from containers(where, one)


CONTAINERS: Final = [found for where, tree in trees() for found in containers(where, tree)]
WHOLE: Final = [one for one in CONTAINERS if one.image is not None]


def added(context: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(context.get("capabilities", {}).get("add") or ())


def test_containers_are_found_in_every_kind_of_file() -> None:
    places = {one.where for one in CONTAINERS}
    assert {
        "kubernetes/base/daemonset.yaml",
        "kubernetes/overlays/accounting/kustomization.yaml (patch)",
        "kubernetes/sidecar/pod.yaml",
        "helm/otel-gpu/templates/daemonset.yaml",
        "openshift/kustomization.yaml (patch)",
    } <= places
    assert len(WHOLE) >= 6


@pytest.mark.parametrize("container", WHOLE, ids=lambda one: f"{one.where} {one.name}")
def test_a_container_has_a_read_only_root_no_new_privileges_and_no_capability_that_is_not_listed(
    container: Container,
) -> None:
    assert container.context is not None
    assert container.context["readOnlyRootFilesystem"] is True
    assert container.context["allowPrivilegeEscalation"] is False
    assert container.context["capabilities"]["drop"] == ["ALL"]
    assert "privileged" not in container.context
    in_chart = container.where.startswith("helm/")  # with .Values.mig, which is off, the agent has SYS_ADMIN too
    allowed = {frozenset(), AGENT, AGENT | ADMIN if in_chart else AGENT}
    assert added(container.context) in (allowed if container.name != "accounting" else {ADMIN})


def test_no_patch_takes_any_of_it_back() -> None:
    for container in CONTAINERS:
        context = container.context or {}
        assert context.get("readOnlyRootFilesystem", True) is True, container
        assert context.get("allowPrivilegeEscalation", False) is False, container
        assert not context.get("privileged"), container


def test_the_only_capability_that_a_path_of_a_patch_adds_is_migs() -> None:
    found = [
        (where, step["value"])
        for where, tree in trees()
        if isinstance(tree, list)
        for step in tree
        if isinstance(step, dict) and "securityContext" in str(step.get("path"))
    ]
    assert found == [("kubernetes/overlays/mig/kustomization.yaml (patch)", "SYS_ADMIN")]


def pods(where: str, tree: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Whatever has containers, however deep."""
    if isinstance(tree, dict):
        if "containers" in tree:
            yield where, tree
        for value in tree.values():
            yield from pods(where, value)
    elif isinstance(tree, list):
        for one in tree:
            yield from pods(where, one)


PODS: Final = [found for where, tree in trees() for found in pods(where, tree)]


def test_no_pod_shares_the_nodes_network_or_memory_and_none_but_the_agents_its_pids() -> None:
    for where, pod in PODS:
        assert not pod.get("hostNetwork"), where
        assert not pod.get("hostIPC"), where
        assert not pod.get("hostPID") or "otel-gpu" in {one["name"] for one in pod["containers"]}, where


def test_no_pod_mounts_a_directory_of_the_node_that_holds_others_secrets() -> None:
    paths = {str(one["hostPath"]["path"]) for _, pod in PODS for one in pod.get("volumes", ()) if "hostPath" in one}
    assert paths
    assert not paths & {
        "/",
        "/etc",
        "/root",
        "/home",
        "/var",
        "/var/run",
        "/var/lib",
        "/var/lib/kubelet",
        "/run",
        "/dev",
    }


def test_every_service_of_compose_is_locked_and_what_is_added_to_it_adds_no_right() -> None:
    for path in sorted((DEPLOY / "compose").glob("*.yaml")):
        document = yaml.load(path.read_text(encoding="utf-8"), Loader)
        for name, service in (document.get("services") or {}).items():
            where = f"{path.name} {name}"
            if path.name == "compose.yaml":
                assert service["read_only"] is True, where
                assert service["cap_drop"] == ["ALL"], where
                assert service["security_opt"] == ["no-new-privileges:true"], where
            assert service.get("read_only", True) is True, where
            assert service.get("cap_drop", ["ALL"]) == ["ALL"], where
            assert "security_opt" not in service or "no-new-privileges:true" in service["security_opt"], where
            assert not service.get("privileged"), where
            assert frozenset(service.get("cap_add") or ()) in (frozenset(), AGENT if name == "agent" else frozenset())
            assert "devices" not in service, where
            assert service.get("network_mode") != "host", where
            assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), where


def test_the_unit_has_a_read_only_system_no_new_privileges_and_two_capabilities() -> None:
    text = (DEPLOY / "systemd/otel-gpu.service").read_text(encoding="utf-8")
    settings = dict(re.findall(r"^([A-Z][A-Za-z]+)=(.*)$", text, re.MULTILINE))
    both = {f"CAP_{name}" for name in AGENT}
    assert settings["ProtectSystem"] == "strict"
    assert settings["NoNewPrivileges"] == "yes"
    assert settings["DynamicUser"] == "yes"
    assert set(settings["CapabilityBoundingSet"].split()) == set(settings["AmbientCapabilities"].split()) == both
    assert "ReadWritePaths" not in settings
    for path in sorted((DEPLOY / "systemd").glob("*.conf")):  # what may be added to it
        drop_in = path.read_text(encoding="utf-8")
        assert not re.search(
            r"^(Capability|Ambient|NoNew|Protect|SystemCall|Restrict|ReadWrite)", drop_in, re.MULTILINE
        ), path


def test_openshifts_constraint_allows_no_more() -> None:
    scc = yaml.safe_load((DEPLOY / "openshift/scc.yaml").read_text(encoding="utf-8"))
    assert frozenset(scc["allowedCapabilities"]) == AGENT
    assert scc["requiredDropCapabilities"] == ["ALL"]
    assert scc["readOnlyRootFilesystem"] is True
    assert not any(value for key, value in scc.items() if key.startswith("allowPrivilege"))
    assert not any(scc[key] for key in ("allowHostIPC", "allowHostNetwork", "allowHostPorts"))


def test_the_image_runs_unprivileged_without_a_shell_or_an_installer() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    _, _, final = re.split(r"^FROM .*$", text, flags=re.MULTILINE)
    users = re.findall(r"^USER (\S+)$", final, re.MULTILINE)
    assert users == ["65532:65532"]
    assert re.search(r'^ENTRYPOINT \["otel-gpu"\]$', final, re.MULTILINE)
    assert not re.search(r"^(RUN|ADD) ", final, re.MULTILINE)  # nothing is fetched or run in what is shipped
    assert not re.search(r"^ADD ", text, re.MULTILINE)
    assert text.count("--require-hashes") == text.count("-r constraints/")  # every package by its hash
