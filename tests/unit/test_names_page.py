"""docs/names.md, as far as it can be checked: what people copy from it works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_gpu.config import SETTINGS
from otel_gpu.config.groups import Environment
from otel_gpu.sources.names import candidates

PAGE = (Path(__file__).parents[2] / "docs/names.md").read_text(encoding="utf-8")
MANIFESTS: list[dict[str, Any]] = [
    document for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) for document in yaml.safe_load_all(block)
]


def manifest(kind: str) -> dict[str, Any]:
    return next(document for document in MANIFESTS if document["kind"] == kind)


def test_the_agent_may_read_pods_in_the_cluster_and_nothing_else() -> None:
    assert manifest("ClusterRole")["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    account, binding = manifest("ServiceAccount")["metadata"], manifest("ClusterRoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert binding["roleRef"]["name"] == manifest("ClusterRole")["metadata"]["name"]


def test_the_daemonset_mounts_directories_in_which_the_agent_finds_the_sockets() -> None:
    pod = manifest("DaemonSet")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    usual = [f"/{path}" for path in (candidates._CONTAINERD, candidates._POD_RESOURCES[0])]
    assert {str(Path(path).parent) for path in usual} == mounts.keys() - {"/host/proc"}
    assert all(path in ("/host/proc", volumes[name]) for path, name in mounts.items())


def test_the_daemonset_has_the_privileges_for_nvml_and_other_processes() -> None:
    """Without NVIDIA's runtime there is no libnvidia-ml in the container, and without the variables no GPU."""
    pod = manifest("DaemonSet")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert pod["runtimeClassName"] == "nvidia"
    assert (variables["NVIDIA_VISIBLE_DEVICES"], variables["NVIDIA_DRIVER_CAPABILITIES"]) == ("all", "utility")
    assert pod["hostPID"] is True
    assert container["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE", "DAC_READ_SEARCH"]
    assert container["securityContext"]["runAsUser"] == 0
    dockerfile = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8")
    assert "HOST_PROC=/host/proc" in dockerfile
    assert "/host/proc" in [mount["mountPath"] for mount in container["volumeMounts"]]
    # A pod that requests a GPU takes it from pods that compute.
    assert "resources" not in container or "nvidia.com/gpu" not in str(container["resources"])


@pytest.mark.parametrize("path", [*candidates._CRI, *candidates._POD_RESOURCES])
def test_every_searched_path_is_on_the_page(path: str) -> None:
    assert f"`/{path}`" in PAGE or f"`/{Path(path).parent}`" in PAGE


def test_every_environment_and_every_flag_on_the_page_is_one() -> None:
    assert all(f"`{name}`" in PAGE for name in Environment)
    others = {"--cap-add", "--pid", "--now", "--user", "--gpus", "--device", "--privileged"}
    used = set(re.findall(r"--[a-z][a-z-]+", PAGE)) - others
    assert used <= {setting.flag for setting in SETTINGS}
