"""docs/names.md, as far as it can be checked: what people copy from it works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_gpu import environment
from otel_gpu.config import SETTINGS
from otel_gpu.settings_names import Environment

PAGE = (Path(__file__).parents[2] / "docs/names.md").read_text(encoding="utf-8")
MANIFESTS: list[dict[str, Any]] = [
    document for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) for document in yaml.safe_load_all(block)
]


def manifest(kind: str) -> dict[str, Any]:
    return next(document for document in MANIFESTS if document["kind"] == kind)


def test_the_agent_may_read_pods_in_the_cluster_and_nothing_else() -> None:
    assert manifest("ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    account, binding = manifest("ServiceAccount")["metadata"], manifest("ClusterRoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert binding["roleRef"]["name"] == manifest("ClusterRole")["metadata"]["name"]


def test_the_daemonset_mounts_directories_in_which_the_agent_finds_the_sockets() -> None:
    pod = manifest("DaemonSet")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    usual = [f"/{path}" for path in (environment._CONTAINERD, environment._POD_RESOURCES)]
    assert {str(Path(path).parent) for path in usual} == mounts.keys() - {"/host/proc"}
    assert all(path in ("/host/proc", volumes[name]) for path, name in mounts.items())


@pytest.mark.parametrize("path", environment._CRI)
def test_every_runtime_that_is_looked_for_has_its_place_on_the_page(path: str) -> None:
    assert f"`/{path}`" in PAGE or f"`/{Path(path).parent}`" in PAGE


def test_every_environment_and_every_flag_on_the_page_is_one() -> None:
    assert all(f"`{name}`" in PAGE for name in Environment)
    others = {"--cap-add", "--pid", "--now", "--user"}
    used = set(re.findall(r"--[a-z][a-z-]+", PAGE)) - others
    assert used <= {setting.flag for setting in SETTINGS}
