from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from otel_gpu.errors import UsageError
from otel_gpu.web.web_config import ClientAuth, WebConfigFile, parse_web_config, read_web_config

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
PAIR = "tls_server_config:\n  cert_file: server.crt\n  key_file: keys/server.key\n"
VERIFIED = PAIR + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: /ca.crt\n"


def parse(text: str) -> WebConfigFile:
    return parse_web_config(text, "web.yml", Path("/etc/otel-gpu"))


def parse_error(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# ---------------------------------------------------------------------------- valid files


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "---\n",
        "{}",
        "tls_server_config:\n",
        "tls_server_config: {}\nhttp_server_config: {}\nbasic_auth_users: {}\n",
        "http_server_config:\n  http2: false\n",
        "http_server_config:\n  http2: true\n  headers:\n",
    ],
)
def test_an_empty_configuration_is_valid(text: str) -> None:
    assert parse(text) == WebConfigFile()


def test_paths_are_relative_to_the_file() -> None:
    config = parse(PAIR)
    assert config.files == (Path("/etc/otel-gpu/server.crt"), Path("/etc/otel-gpu/keys/server.key"))
    tls = config.tls
    assert tls is not None
    assert (tls.client_auth, tls.client_ca, tls.client_allowed_sans) == (ClientAuth.NONE, None, frozenset())
    assert (tls.min_version, tls.max_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    assert (tls.ciphers, tls.prefer_server_ciphers) == ((), True)


def test_every_supported_setting_is_read() -> None:
    config = parse(
        VERIFIED + "  client_allowed_sans: [prometheus.example, '10.0.0.1']\n"
        "  min_version: TLS13\n  max_version: TLS13\n  prefer_server_cipher_suites: false\n"
        "  cipher_suites:\n  - TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384\n"
        "  - TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256\n"
        "http_server_config:\n  headers:\n    X-Frame-Options: deny\n    Content-Security-Policy: ''\n"
        f"basic_auth_users:\n  alice: {HASH}\nauth_excluded_paths: [/healthz]\n"
    )
    tls = config.tls
    assert tls is not None
    assert tls.client_auth is ClientAuth.REQUIRED
    assert config.files[2] == Path("/ca.crt")
    assert tls.client_allowed_sans == {"prometheus.example", "10.0.0.1"}
    assert (tls.min_version, tls.max_version) == (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)
    assert tls.ciphers == ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305")
    assert not tls.prefer_server_ciphers
    assert config.headers == {"X-Frame-Options": "deny", "Content-Security-Policy": ""}
    assert config.users == {"alice": HASH.encode()}
    assert config.open_paths == {"/healthz"}


def test_certificates_may_be_inline() -> None:
    config = parse("tls_server_config:\n  cert: |\n    CERT\n    LINES\n  key: KEY\n")
    assert config.tls is not None
    assert (config.tls.cert.text, config.tls.key.text, config.files) == ("CERT\nLINES\n", "KEY", ())


def test_keys_and_hashes_are_not_in_the_repr() -> None:
    config = parse(f"tls_server_config:\n  cert: CERT\n  key: SECRET\nbasic_auth_users:\n  alice: {HASH}\n")
    assert "SECRET" not in repr(config)
    assert HASH not in repr(config)


# ---------------------------------------------------------------------------- errors

ANY_KIND = "NoClientCert, VerifyClientCertIfGiven or RequireAndVerifyClientCert"
ANY_SUITE = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n", "web.yml: the file must be a mapping with the keys tls_server_config, "),
        ("tls_server_config: yes\n", "web.yml:1: tls_server_config must be a mapping with the keys cert, "),
        ("basic_auth_users: [a]\n", "web.yml:1: basic_auth_users must be a mapping with user names as keys"),
        ("tls:\n  a: b\n", "web.yml:1: unknown key 'tls' in the file; use tls_server_config, "),
        ("a\nb: [\n", "web.yml:2: not valid YAML: "),
        ("? [a]\n: b\n", "web.yml:1: the file has a key that is not a single word"),
        (
            PAIR + "  key_file: other\n",
            "web.yml:4: 'key_file' is set twice, first at web.yml:3",
        ),
        (PAIR + "  cert_flie: a\n", "web.yml:4: unknown key 'cert_flie' in tls_server_config; use cert, "),
        (
            "tls_server_config:\n  cert_file: a\n",
            "web.yml:1: tls_server_config needs cert_file and key_file; key_file is missing",
        ),
        (
            "tls_server_config:\n  key_file: a\n",
            "web.yml:1: tls_server_config needs cert_file and key_file; cert_file is missing",
        ),
        (
            "tls_server_config:\n  min_version: TLS13\n",
            "web.yml:1: tls_server_config needs cert_file and key_file; cert_file is missing",
        ),
        (PAIR + "  cert: a\n", "web.yml:1: tls_server_config has both cert and cert_file; use one of them"),
        (
            "tls_server_config:\n  cert_file: [a]\n  key_file: b\n",
            "web.yml:2: cert_file must be a single value: the path of a PEM file",
        ),
        (
            'tls_server_config:\n  cert_file: "a\\0b"\n  key_file: b\n',
            "web.yml:2: cert_file: 'a\\x00b' is not valid; use the path of a PEM file",
        ),
        (
            PAIR + "  client_auth_type: Maybe\n",
            f"web.yml:4: client_auth_type: 'Maybe' is not valid; use {ANY_KIND}",
        ),
        (
            PAIR + "  client_auth_type: RequireAnyClientCert\n",
            "web.yml:4: client_auth_type: 'RequireAnyClientCert' is not supported: Python always verifies ",
        ),
        (
            PAIR + "  client_auth_type: VerifyClientCertIfGiven\n",
            "web.yml:1: client_auth_type VerifyClientCertIfGiven needs client_ca_file or client_ca",
        ),
        (
            PAIR + "  client_ca_file: a\n",
            "web.yml:4: client_ca_file is for client certificates, which client_auth_type ",
        ),
        (
            PAIR + "  client_allowed_sans: [a]\n",
            "web.yml:4: client_allowed_sans needs client_auth_type RequireAndVerifyClientCert",
        ),
        (VERIFIED + "  client_allowed_sans: a\n", "web.yml:6: client_allowed_sans must be a list of "),
        (VERIFIED + "  client_allowed_sans: [[a]]\n", "web.yml:6: client_allowed_sans must be a list of "),
        (VERIFIED + "  client_allowed_sans: []\n", "web.yml:6: client_allowed_sans is empty, so no client can connect"),
        (PAIR + "  min_version: TLS11\n", "web.yml:4: min_version: 'TLS11' is not valid; use TLS12 or TLS13"),
        (PAIR + "  max_version: 1.3\n", "web.yml:4: max_version: '1.3' is not valid; use TLS12 or TLS13"),
        (
            PAIR + "  min_version: TLS13\n  max_version: TLS12\n",
            "web.yml:1: min_version is above max_version, so no client can connect",
        ),
        (PAIR + "  cipher_suites: [RC4]\n", f"web.yml:4: cipher_suites: 'RC4' is not valid; use {ANY_SUITE}"),
        (
            PAIR + "  cipher_suites: [TLS_AES_128_GCM_SHA256]\n",
            f"web.yml:4: cipher_suites: 'TLS_AES_128_GCM_SHA256' is not valid; use {ANY_SUITE}",
        ),
        (
            PAIR + "  prefer_server_cipher_suites: perhaps\n",
            "web.yml:4: prefer_server_cipher_suites: 'perhaps' is not valid; use true or false",
        ),
        (
            PAIR + "  curve_preferences: [X25519]\n",
            "web.yml:4: curve_preferences is not supported, remove it: OpenSSL selects the curves",
        ),
        ("rate_limit:\n  burst: 1\n", "web.yml:1: rate_limit is not supported, remove it: "),
        ("http_server_config:\n  http2: 2\n", "web.yml:2: http2: '2' is not valid; use true or false"),
        (
            "http_server_config:\n  http3: true\n",
            "web.yml:2: unknown key 'http3' in http_server_config; use http2 or ",
        ),
        (
            "http_server_config:\n  headers:\n    Server: x\n",
            "web.yml:3: unknown key 'Server' in headers; use Content-Security-Policy, Strict-Transport-Security, ",
        ),
        (
            "http_server_config:\n  headers:\n    X-Frame-Options: never\n",
            "web.yml:3: X-Frame-Options: 'never' is not valid; use deny or sameorigin",
        ),
        (
            'http_server_config:\n  headers:\n    X-XSS-Protection: "0\\r\\nSet-Cookie: a=b"\n',
            "web.yml:3: X-XSS-Protection: '0\\r\\nSet-Cookie: a=b' is not valid; use printable ASCII on one line",
        ),
        (
            f"basic_auth_users:\n  'a:b': {HASH}\n",
            "web.yml:2: basic_auth_users: 'a:b' is not valid; use a name without a ",
        ),
        (
            f"basic_auth_users:\n  a: {HASH}\nauth_excluded_paths: [healthz]\n",
            "web.yml:3: auth_excluded_paths: 'healthz' is not valid; use a list of paths, such as /healthz",
        ),
        (
            "auth_excluded_paths: [/healthz]\n",
            "web.yml:1: auth_excluded_paths has no effect without basic_auth_users",
        ),
    ],
)
def test_an_error_names_file_line_key_value_and_valid_values(text: str, expected: str) -> None:
    assert parse_error(text).startswith(expected)


@pytest.mark.parametrize(
    "written",
    ["hunter2", "", "~", HASH[:-1], HASH + "x", HASH.replace("$10$", "$03$"), HASH.replace("$2y$", "$1$")],
    ids=["plain", "empty", "null", "short", "long", "cheap", "not bcrypt"],
)
def test_an_invalid_hash_is_rejected_and_not_shown(written: str) -> None:
    text = parse_error(f"basic_auth_users:\n  bob: {HASH}\n  alice: {written}\n")
    assert text.startswith("web.yml:3: basic_auth_users: the value of 'alice' is not a bcrypt hash; use ")
    assert "hunter2" not in text


def test_a_recursive_alias_is_rejected() -> None:
    assert parse_error("basic_auth_users: &a\n  x: *a\n") == ("web.yml:2: x must be a single value: a bcrypt hash")


def test_a_missing_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_web_config(tmp_path / "web.yml")
    assert str(caught.value) == (
        f"cannot read the web configuration file {tmp_path}/web.yml: No such file or directory"
    )


@pytest.mark.parametrize("cost", [15, 31])
def test_a_password_whose_check_takes_too_long_is_refused(cost: int) -> None:
    hashed = f"$2y${cost}$" + "a" * 53
    text = parse_error(f"basic_auth_users:\n  alice: {hashed}\n")
    assert text.startswith(f"web.yml:2: basic_auth_users: the hash of 'alice' has cost {cost}, and a check of its ")
    assert text.endswith(" s; use a cost of at most 14, for example 10")
    assert hashed not in text
