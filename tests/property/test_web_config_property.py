"""Any web configuration file gives a configuration or a one-line error."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.errors import UsageError
from otel_gpu.web.access_policy import parse_basic
from otel_gpu.web.response import accepts_gzip
from otel_gpu.web.web_config import WebConfigFile, parse_web_config
from tests.depth import DEPTH

many = settings(max_examples=60 * DEPTH, deadline=None, derandomize=True, database=None)

KEYS = (
    "tls_server_config", "http_server_config", "basic_auth_users", "auth_excluded_paths", "rate_limit", "cert",
    "cert_file", "key", "key_file", "client_ca_file", "client_auth_type", "client_allowed_sans", "min_version",
    "max_version", "cipher_suites", "prefer_server_cipher_suites", "http2", "headers", "X-Frame-Options", "alice",
)  # fmt: skip
WORDS = ("RequireAndVerifyClientCert", "NoClientCert", "TLS12", "TLS13", "true", "deny", "/healthz", "a.pem", "")

any_text = st.text(max_size=20)
leaf = st.one_of(st.sampled_from(WORDS), any_text, st.none(), st.booleans(), st.integers())
tree = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.sampled_from(KEYS), any_text), inner, max_size=4)
    ),
    max_leaves=12,
)


def outcome(text: str) -> WebConfigFile | UsageError:
    """The configuration or the UsageError. Any other exception fails the test."""
    try:
        return parse_web_config(text, "web.yml", Path("/etc"))
    except UsageError as error:
        return error


@many
@given(st.one_of(tree.map(lambda value: yaml.safe_dump(value, allow_unicode=True)), any_text))
def test_any_text_is_a_configuration_or_a_one_line_error_that_names_the_file(text: str) -> None:
    parsed = outcome(text)
    if isinstance(parsed, UsageError):
        assert str(parsed).startswith("web.yml")
        assert len(str(parsed).splitlines()) == 1
    else:
        assert all(path.is_absolute() for path in parsed.files)


@many
@given(st.one_of(any_text, any_text.map(lambda text: f"Basic {text}")))
def test_any_authorization_header_is_credentials_or_none(text: str) -> None:
    credentials = parse_basic(text)
    assert credentials is None or ":" not in credentials[0]
    assert isinstance(accepts_gzip(text), bool)
