"""A distinct secret in every setting that may have one: none is in logs, output, responses or exports."""

from __future__ import annotations

import base64
import re
import signal
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme

from otel_gpu.cli import main
from otel_gpu.config.values import address
from tests.agent_process import simulated_agent
from tests.cli import otel_gpu
from tests.web import ask

pytestmark = pytest.mark.long

PASSWORD = "swordfish-of-the-scraper"
HEADER = "swordfish-in-a-header"
QUERY = "swordfish-in-a-query"
PROXY = "swordfish-of-a-proxy"
DOCKER = "swordfish-of-an-engine"


class Receiver(ThreadingHTTPServer):
    """A proxy and a Collector that rejects every second request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, dict[str, str]]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.seen.append((self.path, dict(self.headers)))
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        refused = len(self.server.seen) % 2 == 1
        self.send_response(403 if refused else 200)
        self.send_header("Content-Type", "text/plain" if refused else "application/x-protobuf")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class SecretConfig:
    """A configuration with secrets in all settings, and the list of them."""

    def __init__(self, directory: Path, receiver: Receiver) -> None:
        self.receiver = receiver
        port = receiver.server_address[1]
        authority = trustme.CA()
        leaf = authority.issue_cert("127.0.0.1")
        (directory / "server.crt").write_bytes(leaf.cert_chain_pems[0].bytes())
        (directory / "server.key").write_bytes(leaf.private_key_pem.bytes())
        self.trust = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
        hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
        self.web_config = directory / "web.yml"
        self.web_config.write_text(
            "tls_server_config: {cert_file: server.crt, key_file: server.key}\n"
            f"basic_auth_users:\n  alice: {hashed}\n",
            encoding="utf-8",
        )
        self.basic = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
        key_lines = (directory / "server.key").read_text("ascii").splitlines()
        self.secrets = [PASSWORD, HEADER, QUERY, PROXY, hashed, self.basic, key_lines[1]]
        self.environment = {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://collector.invalid:4318/v1/metrics?key={QUERY}",
            "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={HEADER},x-other={HEADER}",
            "HTTP_PROXY": f"http://proxy-user:{PROXY}@127.0.0.1:{port}",
            "http_proxy": f"http://proxy-user:{PROXY}@127.0.0.1:{port}",
            "NO_PROXY": "",
            "no_proxy": "",
            "OTEL_GPU_WEB_CONFIG": str(self.web_config),
            "OTEL_GPU_LOG_LEVEL": "debug",
        }

    def leaks(self, texts: Mapping[str, str]) -> dict[str, list[str]]:
        """The secrets in each text."""
        return {
            where: found
            for where, text in texts.items()
            if (found := [secret for secret in self.secrets if secret in text or secret.encode().hex() in text])
        }


@pytest.fixture
def secret_config(tmp_path: Path) -> Iterator[SecretConfig]:
    with receiving() as receiver:
        yield SecretConfig(tmp_path, receiver)


def test_no_secret_is_in_what_is_logged_shown_served_or_exported(secret_config: SecretConfig, tmp_path: Path) -> None:
    flags = ("--export-interval", "1s", "--exporters", "otlp,prometheus")
    alice = {"Authorization": f"Basic {secret_config.basic}"}
    said: dict[str, str] = {}
    with simulated_agent(*flags, directory=tmp_path, environment=secret_config.environment) as agent:
        agent.until(lambda: "/healthz" in agent.stderr and len(secret_config.receiver.seen) >= 3)
        found = re.search(r"https://(\S+)/healthz", agent.stderr)
        assert found is not None
        for path in ("/", "/metrics", "/api/attribution", "/healthz", "/readyz", "/none"):
            answer = ask(address(found[1]), path, headers=alice, tls=secret_config.trust)
            said[path] = f"{answer.headers}{answer.body}"
        said["401"] = str(ask(address(found[1]), "/", headers={"Authorization": "Basic eDp5"}, tls=secret_config.trust))
        agent.end(signal.SIGTERM)
        said["log"], said["stdout"] = agent.stderr, agent.stdout
    # The secrets were used: header, query and proxy password have arrived.
    path, headers = secret_config.receiver.seen[0]
    assert QUERY in path
    assert headers["api-key"] == HEADER
    assert base64.b64encode(f"proxy-user:{PROXY}".encode()).decode() in headers["Proxy-Authorization"]
    assert "level=debug" in said["log"]
    assert "403" in said["log"]
    assert secret_config.leaks(said) == {}


@pytest.mark.parametrize("command", ["config", "doctor", "once"])
def test_no_secret_is_in_what_a_command_prints(secret_config: SecretConfig, command: str) -> None:
    environment = secret_config.environment | {"COLUMNS": "400"}
    if command != "config":
        environment |= {"OTEL_GPU_INTERVAL": "1s"}
    done = otel_gpu(command, environment=environment)
    assert secret_config.leaks({"stdout": done.stdout, "stderr": done.stderr}) == {}
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["config", "doctor", "run"])
@pytest.mark.parametrize(
    "variable",
    ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_GPU_OTLP_ENDPOINT", "DOCKER_HOST", "CONTAINER_HOST", "OTEL_GPU_OTLP_HEADERS"],
)
def test_a_secret_in_an_unsupported_place_is_rejected_and_not_printed(
    command: str, variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value = f"http://user:{DOCKER}@127.0.0.1:1/?k={DOCKER}"
    if "HOST" in variable:
        value = f"tcp://user:{DOCKER}@127.0.0.1:1"
    if "HEADERS" in variable:
        value = f"api-key={DOCKER},no value {DOCKER}"
    monkeypatch.setenv(variable, value)
    assert main([command]) == 2
    out, err = capsys.readouterr()
    assert DOCKER not in out + err
    assert len(err.splitlines()) == 1


def test_the_error_for_an_invalid_web_config_has_no_content_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "web.yml"
    for content in (
        f"basic_auth_users:\n  alice: {PASSWORD}\n",
        f"basic_auth_users: {PASSWORD}\n",
        f"tls_server_config:\n  cert: {PASSWORD}\n  key: {PASSWORD}\n",
        f"basic_auth_users:\n  - {PASSWORD}\n",
        f"basic_auth_users:\n  alice: '{PASSWORD}\n",
    ):
        broken.write_text(content, encoding="utf-8")
        assert main(["run", "--source", "sim", "--web-config", str(broken), "--listen", "127.0.0.1:0"]) == 2, content
        assert PASSWORD not in "".join(capsys.readouterr()), content
