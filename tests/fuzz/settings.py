"""Files that users write: the configuration and the web configuration. What is wrong is a UsageError, in one line."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from otel_gpu.config import SETTINGS, resolve
from otel_gpu.config.yaml_file import parse_config
from otel_gpu.errors import UsageError
from otel_gpu.web.web_config import parse_web_config
from tests.fuzz.target import ODD_BYTES, Target, mutated

KEYS: Final = tuple(setting.key.encode() for setting in SETTINGS)
CONFIGS: Final = (
    b"interval: 5s\nsource: sim\nlisten: '[::1]:9464'\n",
    b"price-gpu-hour: A100=2.5,H100=4\ncurrency: EUR\nprice-kwh: 0.3\n",
    b"exporters: [otlp, prometheus]\notlp-endpoint: http://u:p@collector:4318/x\notlp-headers: a=b,c=d\n",
    b"compat: dcgm-exporter:9400,gpu-inference\nretention: 10m\n",
    b"resource-attributes: a=b,c=%20d\notlp-timeout: 10s\nlog-level: debug\nseed: 7\n",
    b"docker-host: tcp://10.0.0.1:2376\nlabels: [app, team]\nscope: pod\n",
)
HASH: Final = b"$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
WEB_CONFIGS: Final = (
    b"tls_server_config:\n  cert_file: a.crt\n  key_file: a.key\n  min_version: TLS13\n",
    b"basic_auth_users:\n  alice: " + HASH + b"\nauth_excluded_paths: [/healthz]\n",
    b"http_server_config:\n  headers:\n    X-Frame-Options: deny\n",
    b"tls_server_config: {cert: x, key: y, client_auth_type: RequireAndVerifyClientCert, client_ca_file: c}\n",
    b"tls_server_config:\n  cert: |\n    x\n  key: y\n  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\n",
)
YAML: Final = (
    b"\n", b": ", b"- ", b"&a ", b"*a", b"!!binary ", b"? ", b"|\n  x", b"{", b"}", b"[", b"]", b'"\\UFFFFFFFF"', b"#",
    b"%YAML 9.9\n", b"---\n", b"...\n", b"\t", b"<<: *a", b"!!python/object:os.system ", b'"a\\nb"', b'"\\x1b[2J"',
)  # fmt: skip
VALUES: Final = (
    b"0s",
    b"1e9s",
    b"-5s",
    b"5m",
    b"true",
    b"::",
    b"[::",
    b"http://",
    b"=",
    b"a=",
    b"=b",
    b"65536",
    b"none",
)


def check_config(data: bytes) -> str | None:
    """As a file; then each of its values as a flag's."""
    text = data.decode("utf-8", "replace")
    try:
        found = parse_config(text, "otel-gpu.yaml")
        flags = {key: value.text for key, value in found.items() if key.encode("utf-8", "replace") in KEYS}
        resolved = resolve(flags, {})
        shown = [value.text for value in resolved.effective({})]
        resolved.loaded()
    except UsageError as error:
        return _unsaid(error)
    return next((f"a valid value is shown as nothing: {shown!a}" for each in shown if not each), None)


def check_web_config(data: bytes) -> str | None:
    try:
        parse_web_config(data.decode("utf-8", "replace"), "web.yml", Path("/nowhere"))
    except UsageError as error:
        return _unsaid(error)
    return None


def _unsaid(error: UsageError) -> str | None:
    text = str(error)
    return f"a complaint of several lines: {text!a}" if "\n" in text else None


def make_config(rng: random.Random) -> bytes:
    if rng.random() < 0.3:  # any setting with any value
        value = rng.choice((*VALUES, *ODD_BYTES)).replace(b"'", b"''")
        return rng.choice(KEYS) + b": '" + value + b"'\n" + rng.choice(CONFIGS)
    return mutated(rng, CONFIGS, (*YAML, *VALUES, *KEYS, *ODD_BYTES))


TARGETS: Final = (
    Target("config", make_config, check_config),
    Target("web-config", lambda rng: mutated(rng, WEB_CONFIGS, (*YAML, *ODD_BYTES)), check_web_config),
)
