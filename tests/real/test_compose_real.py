"""``deploy/compose``, loaded with Docker Compose's own loader."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from otel_gpu.config import load
from tests.real.collector import validate
from tests.real.manifests import DEPLOY, ROOT, run
from tests.real.programs import require_program

pytestmark = pytest.mark.real

COMPOSE: Final = DEPLOY / "compose"


def composed(*names: str, **environment: str) -> dict[str, Any]:
    """The services of merged files, with all variables substituted."""
    files = [COMPOSE / name for name in names]
    result = run("manifests", "compose", *files, environment={"GRAFANA_PASSWORD": "secret", **environment})
    assert (result.returncode, result.stderr) == (0, "")
    services: dict[str, Any] = json.loads(result.stdout)["services"]
    return services


def sources(service: Mapping[str, Any]) -> dict[str, str]:
    """Sources of a container's mounts by their target."""
    return {one["target"]: one["source"] for one in service["volumes"]}


def published(service: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """The host address and port of each published port of a container."""
    return {one["target"]: (one["host_ip"], one["published"]) for one in service["ports"]}


def test_compose_loads_the_project_and_every_mounted_file_exists() -> None:
    services = composed("compose.yaml")
    assert set(services) == {"agent", "collector", "prometheus", "grafana"}
    mounts = [one for service in services.values() for one in service["volumes"] if one["type"] == "bind"]
    assert all(one["read_only"] for one in mounts)
    ours = [path for one in mounts if (path := Path(one["source"])).is_relative_to(ROOT)]
    assert len(ours) == 5
    assert all(path.exists() for path in ours)
    [gpus] = services["agent"]["deploy"]["resources"]["reservations"]["devices"]
    assert (gpus["driver"], gpus["count"], gpus["capabilities"]) == ("nvidia", -1, ["gpu", "utility"])
    of_host = {
        "/host/proc": "/proc",
        "/etc/machine-id": "/etc/machine-id",
        "/var/run/docker.sock": "/var/run/docker.sock",
    }
    assert sources(services["agent"]) == {**of_host, "/var/lib/otel-gpu": "state"}
    assert services["agent"]["environment"]["OTEL_GPU_STATE_DIR"] == "/var/lib/otel-gpu"
    assert services["agent"]["tmpfs"] == ["/run/otel-gpu:mode=0700"]
    assert [services["agent"][key] for key in ("pid", "cgroup", "uts", "user")] == ["host", "host", "host", "0:0"]


def test_the_demo_has_no_privileges() -> None:
    agent = composed("compose.yaml", "demo.yaml")["agent"]
    for key in ("pid", "cgroup", "uts", "cap_add", "volumes", "tmpfs"):
        assert not agent.get(key)
    assert "reservations" not in agent["deploy"]["resources"]
    assert (agent["user"], agent["cap_drop"], agent["read_only"]) == ("65532:65532", ["ALL"], True)
    assert agent["command"][0] == "demo"


def test_the_port_of_a_replaced_exporter_is_published_on_loopback_only() -> None:
    plain, agent = composed("compose.yaml")["agent"], composed("compose.yaml", "compat.yaml")["agent"]
    added = {key: value for key, value in agent["environment"].items() if key not in plain["environment"]}
    config = load({"listen": agent["command"][agent["command"].index("--listen") + 1]}, added).config
    assert config.web.listen.host == "0.0.0.0"
    [listener] = config.compat.listeners
    port = listener.address.port
    assert (listener.exporter, port) == ("dcgm-exporter", 9400)
    assert published(agent) == published(plain) | {port: ("127.0.0.1", str(port))}
    for one in (plain, agent):
        del one["environment"], one["ports"]
    assert agent == plain


def test_grafana_does_not_start_without_a_password() -> None:
    result = run("manifests", "compose", COMPOSE / "compose.yaml", environment={"GRAFANA_PASSWORD": ""})
    assert result.returncode != 0
    assert "GRAFANA_PASSWORD" in result.stderr


def test_grafana_finds_its_dashboards_and_prometheus(tmp_path: Path) -> None:
    services = composed("compose.yaml")
    mounts = sources(services["grafana"])
    provisioning = Path(mounts["/etc/grafana/provisioning"])  # Grafana's default
    assert provisioning == COMPOSE / "grafana/provisioning"
    assert not [key for key in services["grafana"]["environment"] if key.startswith("GF_PATHS_")]
    [file] = (provisioning / "dashboards").iterdir()
    [provider] = yaml.safe_load(file.read_text(encoding="utf-8"))["providers"]
    assert provider["type"] == "file"
    folder = Path(mounts[provider["options"]["path"]])
    assert folder == COMPOSE / "dashboards"
    assert (folder / "README.md").is_file()
    for dashboard in folder.rglob("*.json"):
        assert json.loads(dashboard.read_text(encoding="utf-8"))["title"]
    [file] = (provisioning / "datasources").iterdir()
    [source] = yaml.safe_load(file.read_text(encoding="utf-8"))["datasources"]
    url = urlsplit(source["url"])
    assert (source["type"], source["uid"], url.hostname) == ("prometheus", "prometheus", "prometheus")
    assert url.port in published(services["prometheus"])
    other = sources(composed("compose.yaml", DASHBOARDS=str(tmp_path))["grafana"])
    assert other[provider["options"]["path"]] == str(tmp_path)
    assert mounts["/var/lib/grafana"] == "grafana"


def test_each_service_sends_to_an_address_of_the_next() -> None:
    services = composed("compose.yaml")
    agent, collector, prometheus = (services[name] for name in ("agent", "collector", "prometheus"))
    sent_to = urlsplit(agent["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"])
    assert sent_to.hostname == "collector"
    assert collector["environment"]["OTLP_GRPC_LISTEN"] == f"0.0.0.0:{sent_to.port}"
    assert agent["environment"]["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc"
    written_to = urlsplit(collector["environment"]["REMOTE_WRITE_URL"])
    assert (written_to.hostname, written_to.path) == ("prometheus", "/api/v1/write")
    assert written_to.port in published(prometheus)
    assert "--web.enable-remote-write-receiver" in prometheus["command"]
    words = dict(word.partition("=")[::2] for word in (*collector["command"], *prometheus["command"]))
    assert words["--config"] in sources(collector)
    assert words["--config.file"] in sources(prometheus)
    assert sources(prometheus)[words["--storage.tsdb.path"]] == "prometheus"


def test_the_collector_and_prometheus_accept_their_configurations() -> None:
    services = composed("compose.yaml")
    [mount] = services["collector"]["volumes"]
    result = validate(Path(mount["source"]), environment=services["collector"]["environment"])
    assert (result.returncode, result.stderr) == (0, "")
    promtool = require_program("promtool", "Debian has it in the package prometheus")
    words = [str(promtool), "check", "config", str(COMPOSE / "prometheus.yaml")]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0


def test_prometheus_finds_its_rules() -> None:
    mounts = sources(composed("compose.yaml")["prometheus"])
    [pattern] = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text(encoding="utf-8"))["rule_files"]
    where, _, names = pattern.rpartition("/")
    found = sorted(path.name for path in Path(mounts[where]).glob(names))
    assert Path(mounts[where]) == DEPLOY / "prometheus/rules"
    assert found == ["alerts.yaml", "recording.yaml"]


def test_a_compose_file_with_an_unknown_field_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text("name: a\nservices: {b: {image: c, readonly: true}}\n", encoding="utf-8")
    assert run("manifests", "compose", file).returncode == 1
