from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.config import SETTINGS, Loaded, Value, load
from otel_gpu.config.checks import check_exports
from otel_gpu.config.groups import Compression, Exporter, Protocol, Temporality
from otel_gpu.config.values import Endpoint
from otel_gpu.errors import UsageError
from tests.unit.export.collectors import Pki

OTLP_METRICS = "OTEL_EXPORTER_OTLP_METRICS"
RESOURCE = {"a": "b,c", "d": "e"}
PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def loaded(flags: Mapping[str, str] | None = None, /, **environment: str) -> Loaded:
    return load(flags or {}, environment)


def origin(found: Loaded, key: str) -> str:
    return next(value.origin for value in found.values if value.key == key)


def complaint(flags: Mapping[str, str], /, **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        check_exports(load(flags, environment))
    text = str(caught.value)
    assert "\n" not in text
    return text


# ---------------------------------------------------------------------------- variables of OpenTelemetry


@pytest.mark.parametrize(
    ("variable", "text", "key", "field", "expected"),
    [
        ("OTEL_METRICS_EXPORTER", "otlp, Prometheus,otlp", "exporters", "exporters", ("otlp", "prometheus")),
        ("OTEL_METRICS_EXPORTER", "console", "exporters", "exporters", (Exporter.CONSOLE,)),
        ("OTEL_METRICS_EXPORTER", "none", "exporters", "exporters", ()),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1500", "export-interval", "interval_s", 1.5),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "2500", "export-timeout", "timeout_s", 2.5),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "otlp-protocol", "otlp.protocol", Protocol.GRPC),
        ("OTEL_EXPORTER_OTLP_HEADERS", "A=b,c=d%3De", "otlp-headers", "otlp.headers", {"a": "b", "c": "d=e"}),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "3000", "otlp-timeout", "otlp.timeout_s", 3.0),
        ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "4000", "otlp-timeout", "otlp.timeout_s", 4.0),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "otlp-compression", "otlp.compression", Compression.GZIP),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "a", "otlp-certificate", "otlp.certificate", Path("a")),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "a", "otlp-client-key", "otlp.client_key", Path("a")),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "a", "otlp-client-certificate", "otlp.client_certificate", Path("a")),
        ("OTEL_EXPORTER_OTLP_INSECURE", "True", "otlp-insecure", "otlp.insecure", True),
        (f"{OTLP_METRICS}_TEMPORALITY_PREFERENCE", "Delta", "otlp-temporality", "otlp.temporality", Temporality.DELTA),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=b%2Cc, d = e", "resource-attributes", "resource_attributes", RESOURCE),
        ("OTEL_SERVICE_NAME", "gpus", "service-name", "service_name", "gpus"),
    ],
)
def test_a_variable_of_opentelemetry_means_what_it_says(
    variable: str, text: str, key: str, field: str, expected: Any
) -> None:
    found = loaded(**{variable: text})
    assert attrgetter(field)(found.config.export) == expected
    assert origin(found, key) == variable


SIGNALS = [
    ("PROTOCOL", "grpc", "http/protobuf", "otlp-protocol"),
    ("HEADERS", "a=1", "b=2", "otlp-headers"),
    ("TIMEOUT", "1000", "2000", "otlp-timeout"),
    ("COMPRESSION", "gzip", "none", "otlp-compression"),
    ("CERTIFICATE", "a", "b", "otlp-certificate"),
    ("CLIENT_KEY", "a", "b", "otlp-client-key"),
    ("CLIENT_CERTIFICATE", "a", "b", "otlp-client-certificate"),
    ("INSECURE", "true", "false", "otlp-insecure"),
    ("ENDPOINT", "http://a/b", "http://c", "otlp-endpoint"),
]


@pytest.mark.parametrize(("name", "own", "general", "key"), SIGNALS)
def test_a_variable_for_metrics_beats_the_one_for_all_signals_and_ours_beats_both(
    name: str, own: str, general: str, key: str
) -> None:
    theirs = {f"OTEL_EXPORTER_OTLP_METRICS_{name}": own, f"OTEL_EXPORTER_OTLP_{name}": general}
    ours = f"OTEL_GPU_{key.upper().replace('-', '_')}"
    assert origin(loaded(**theirs), key) == f"OTEL_EXPORTER_OTLP_METRICS_{name}"
    assert origin(loaded(**(theirs | {f"OTEL_EXPORTER_OTLP_METRICS_{name}": ""})), key) == f"OTEL_EXPORTER_OTLP_{name}"
    our_text = {"TIMEOUT": "1s"}.get(name, own)
    assert origin(loaded(**theirs, **{ours: our_text}), key) == ours
    assert origin(loaded({key: our_text}, **theirs), key) == f"--{key}"


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}, "/v1/metrics"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318/"}, "/v1/metrics"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318/otlp/"}, "/otlp/v1/metrics"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h:4318"}, "/"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h:4318/"}, "/"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h:4318/v1/metrics"}, "/v1/metrics"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h:4318/a/"}, "/a/"),
        ({"OTEL_GPU_OTLP_ENDPOINT": "http://h:4318/"}, ""),  # without a path it is /v1/metrics
        ({"OTEL_GPU_OTLP_ENDPOINT": "http://h:4318/a"}, "/a"),
    ],
)
def test_the_endpoint_for_metrics_is_used_as_it_is_and_the_general_one_is_a_base(
    environment: dict[str, str], path: str
) -> None:
    assert loaded(**environment).config.export.otlp.target.path == path


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"])
def test_over_grpc_there_is_no_path(name: str) -> None:
    for url in ("http://h:4317", "http://h:4317/", "http://h:4317/x"):
        found = loaded({"otlp-protocol": "grpc"}, **{name: url})
        assert str(found.config.export.otlp.target) == "http://h:4317"


@pytest.mark.parametrize(
    ("variable", "text", "key"),
    [
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://a:4318", "otlp-endpoint"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318/", "otlp-endpoint"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1500", "export-interval"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "3000", "otlp-timeout"),
    ],
)
def test_values_are_shown_as_they_were_written(variable: str, text: str, key: str) -> None:
    assert Value(key, text, variable) in loaded(**{variable: text}).values


@pytest.mark.parametrize(
    ("flags", "target"),
    [
        ({}, "http://localhost:4318"),
        ({"otlp-protocol": "grpc"}, "http://localhost:4317"),
        ({"otlp-protocol": "grpc", "otlp-endpoint": "h:1", "otlp-insecure": "true"}, "http://h:1"),
        ({"otlp-protocol": "grpc", "otlp-endpoint": "h:1", "otlp-insecure": "false"}, "https://h:1"),
        ({"otlp-endpoint": "HTTPS://[::1]:1/x"}, "https://[::1]:1/x"),
    ],
)
def test_the_otlp_target(flags: dict[str, str], target: str) -> None:
    found = loaded(flags)
    check_exports(found)
    assert str(found.config.export.otlp.target) == target


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "otel-gpu"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=a"}, "a"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=a", "OTEL_SERVICE_NAME": "b"}, "b"),
    ],
)
def test_the_service_name_by_precedence(environment: dict[str, str], name: str) -> None:
    assert loaded(**environment).config.export.service == name


@pytest.mark.parametrize(
    ("flags", "serves"),
    [
        ({}, False),
        ({"prometheus": "true"}, True),
        ({"exporters": "otlp,prometheus"}, True),
        ({"exporters": "none", "prometheus": "on"}, True),
        ({"exporters": "prometheus", "prometheus": "off"}, True),
    ],
)
def test_prometheus_is_served_if_any_setting_enables_it(flags: dict[str, str], serves: bool) -> None:
    assert loaded(flags).config.export.serves_prometheus is serves


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("OTEL_METRICS_EXPORTER", "zipkin"),
        ("OTEL_METRICS_EXPORTER", "none,console"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "unix:///tmp/x"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:port"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:70000"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=%0d%0aevil: 1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=%zz"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=%ff"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=1,a=2"),
    ],
)
def test_an_error_names_the_standard_variable(variable: str, text: str) -> None:
    assert complaint({}, **{variable: text}).startswith(f"{variable}: ")


def test_an_error_about_milliseconds_says_so() -> None:
    assert complaint({}, OTEL_METRIC_EXPORT_INTERVAL="often").endswith("milliseconds from 100 to 3600000")
    for text in ("0", "10s", "1000.5"):
        assert complaint({}, OTEL_EXPORTER_OTLP_TIMEOUT=text).endswith("milliseconds from 100 to 600000")


# ---------------------------------------------------------------------------- secrets


def test_values_of_headers_are_shown_nowhere() -> None:
    found = loaded(OTEL_EXPORTER_OTLP_HEADERS="api-key=secret, x = hidden")
    assert found.config.export.otlp.headers == {"api-key": "secret", "x": "hidden"}
    assert Value("otlp-headers", "api-key=…,x=…", "OTEL_EXPORTER_OTLP_HEADERS") in found.values
    for text in ("secret", "api-key=secret\x01", "api key=secret"):
        assert "secret" not in complaint({"otlp-headers": text})


def test_passwords_in_an_endpoint_are_refused_and_shown_nowhere() -> None:
    text = complaint({"otlp-endpoint": "https://me:secret@host/"})
    assert text.startswith("--otlp-endpoint: 'https://…@host/' is not a valid endpoint; use a URL")
    assert (
        Value("otlp-endpoint", "https://h/x?…", "--otlp-endpoint")
        in loaded({"otlp-endpoint": "https://h/x?token=secret"}).values
    )


# ---------------------------------------------------------------------------- what must agree


def test_two_exports_must_fit_into_the_retention() -> None:
    flags = {"retention": "29s", "export-interval": "15s"}
    assert complaint(flags) == (
        "--retention: '29s' is too short; use at least twice the export-interval (15s), "
        "so that every exporter gets final values"
    )
    check_exports(loaded(flags | {"retention": "30s"}))
    check_exports(loaded(flags | {"exporters": "none", "prometheus": "on"}))


def test_the_default_retention_is_raised_to_two_exports() -> None:
    found = loaded(OTEL_METRIC_EXPORT_INTERVAL="180000")
    check_exports(found)
    assert found.config.attribution.retention_s == 360.0
    assert Value("retention", "360s", "default, raised for export-interval") in found.values


@pytest.mark.parametrize(
    "flags",
    [
        {"export-interval": "150s"},  # there is room
        {"export-interval": "3m", "exporters": "prometheus"},  # nothing is pushed
        {"export-interval": "3m", "exporters": "none"},
    ],
)
def test_a_sufficient_default_retention_is_not_raised(flags: dict[str, str]) -> None:
    assert Value("retention", "5m", "default") in loaded(flags).values


def test_a_configured_retention_is_not_raised() -> None:
    assert complaint({"retention": "5m", "export-interval": "3m"}).startswith("--retention: '5m' is too short; ")


OR_TLS = "or use an https:// endpoint"


@pytest.mark.parametrize(
    ("flags", "key", "problem"),
    [
        ({"otlp-endpoint": "h:1"}, "otlp-endpoint", "has no scheme; use a URL, for example http://h:1"),
        (
            {"otlp-endpoint": "h:1", "otlp-protocol": "grpc"},
            "otlp-endpoint",
            "has no scheme; use http://h:1 or https://h:1, or set otlp-insecure",
        ),
        (
            {"otlp-endpoint": "https://h", "otlp-insecure": "true"},
            "otlp-insecure",
            "contradicts the endpoint https://h; use false, or remove it",
        ),
        (
            {"otlp-endpoint": "http://h", "otlp-insecure": "false"},
            "otlp-insecure",
            f"contradicts the endpoint http://h, which is plain text; use true, or remove it, {OR_TLS}",
        ),
        (
            {"otlp-endpoint": "http://h", "otlp-certificate": "ca.crt"},
            "otlp-certificate",
            f"has no effect with the endpoint http://h, which is plain text; remove it, {OR_TLS}",
        ),
        (
            {"otlp-client-certificate": "x.crt"},
            "otlp-client-certificate",
            f"has no effect with the endpoint http://localhost:4318, which is plain text; remove it, {OR_TLS}",
        ),
        (
            {"otlp-endpoint": "https://h", "otlp-client-key": "x.key"},
            "otlp-client-key",
            "needs otlp-client-certificate, too",
        ),
    ],
)
def test_contradicting_settings_are_refused(flags: dict[str, str], key: str, problem: str) -> None:
    assert complaint(flags) == f"--{key}: '{flags[key]}' {problem}"
    check_exports(loaded(flags | {"exporters": "prometheus"}))  # no exporter uses it


def test_files_are_checked_before_anything_starts(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "large").write_bytes(b"x" * (1 << 21))
    other = pki.ca.issue_cert("other")
    other.private_key_pem.write_to_path(tmp_path / "other.key")
    secure = {"otlp-endpoint": "https://h"}

    def problem_of(**files: str) -> str:
        flags = {key.replace("_", "-"): pki.file(name) for key, name in files.items()}
        return complaint(secure | flags).partition("' ")[2]

    assert problem_of(otlp_certificate="none") == "cannot be read: No such file or directory"
    assert problem_of(otlp_certificate=".") == "cannot be read: Is a directory"
    no_certificate = "is not valid; use a file with one or more certificates in PEM"
    assert problem_of(otlp_certificate="empty") == no_certificate
    assert problem_of(otlp_certificate="large") == "is over 1 MiB; use a file in PEM"
    assert problem_of(otlp_certificate="client.key") == no_certificate
    own = "client.crt"
    assert (
        problem_of(otlp_client_certificate="client.key")
        == "is not valid; use a file with one or more certificates in PEM"
    )
    assert problem_of(otlp_client_certificate=own, otlp_client_key="none").startswith("cannot be read: ")
    assert problem_of(otlp_client_certificate=own, otlp_client_key="other.key").startswith(
        "is not valid; use the private key, in PEM, of "
    )
    assert problem_of(otlp_client_certificate=own, otlp_client_key="ca.crt").startswith(
        "is not valid; use the private key, in PEM, of "
    )
    assert problem_of(otlp_client_certificate=own).startswith("has no private key; add the key to the file")


def test_good_files_are_accepted(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    flags = {"otlp-endpoint": "https://h", "otlp-certificate": pki.file("ca.crt")}
    pair = {"otlp-client-certificate": pki.file("client.crt"), "otlp-client-key": pki.file("client.key")}
    check_exports(loaded(flags | pair))
    check_exports(loaded(flags | {"otlp-client-certificate": pki.file("both.pem")}))


def test_an_encrypted_key_is_refused_without_a_prompt(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - trustme brings it

    pki = Pki(tmp_path)
    key = serialization.load_pem_private_key((tmp_path / "client.key").read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"x"),
    )
    (tmp_path / "locked.key").write_bytes(encrypted)
    flags = {"otlp-client-certificate": pki.file("client.crt"), "otlp-client-key": pki.file("locked.key")}
    assert complaint({"otlp-endpoint": "https://h", **flags}).endswith(
        "is encrypted; use a private key without a passphrase"
    )


def test_an_endpoint_is_written_as_it_was_read() -> None:
    assert str(Endpoint("", "h:1", "/x")) == "h:1/x"


# ---------------------------------------------------------------------------- the page


def row(key: str) -> str:
    setting = next(setting for setting in SETTINGS if setting.key == key)
    variables = ", ".join(f"`{name}`" for name in setting.variables)
    default = f"`{setting.default}`" if setting.default else setting.when_empty
    return f"| `{setting.key}` | {default} | {setting.help} | {setting.type.use} | {variables} |"


def test_the_page_has_every_setting_with_all_its_variables() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in page if line.startswith("| `")]
    assert rows == [row(setting.key) for setting in SETTINGS]


@pytest.mark.parametrize(
    ("endpoint", "insecure"), [("http://localhost:4318", "false"), ("https://collector:4318", "true")]
)
def test_the_standard_insecure_variable_is_ignored_if_the_endpoint_has_a_scheme(endpoint: str, insecure: str) -> None:
    """It may be set for other programs; the specification ignores it there."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_INSECURE": insecure}
    loaded = load({}, environment)
    check_exports(loaded)
    assert str(loaded.config.export.otlp.target).startswith(endpoint)
