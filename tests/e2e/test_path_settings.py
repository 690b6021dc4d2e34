"""Every setting that is a path, with something else at the path: one line names it, and nothing waits for it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
import trustme

from otel_gpu.config import SETTINGS
from tests.cli import clean_environment, command, without_progress

TIMEOUT_S: Final = 60.0
"""A command that waits for a pipe never ends. The refusal of a pipe that may be a configuration takes 5 s."""

KINDS: Final = ("pipe", "directory", "huge", "unreadable")
PATHS: Final = {each.key for each in SETTINGS if each.type.noun in ("file", "directory", "path", "socket", "URL")}
PEM_FILES: Final = {each.key: each for each in SETTINGS if each.key in PATHS and each.key.startswith("otlp-")}
AGENT: Final = ("run", "--source", "sim", "--listen", "127.0.0.1:0", "--state-dir", "none", "--control-socket", "none")
WEB_FILES: Final = ("cert_file", "key_file", "client_ca_file")
DOCTOR_SUBJECTS: Final = {
    "cri-socket": "cri",
    "pod-resources-socket": "pod-resources",
    "docker-host": "docker",
    "podman-host": "podman",
    "proc-root": "proc",
    "state-dir": "state",
    "control-socket": "control",
}
"""The doctor's subject for a setting that is not a file. The path of sys-root is optional, and absent on some hosts."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a valid certificate and key, and with each kind of thing that is no file."""
    directory = tmp_path_factory.mktemp("paths")
    pair = trustme.CA().issue_cert("localhost")
    pair.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    pair.private_key_pem.write_to_path(directory / "key.pem")
    os.mkfifo(directory / "pipe")
    (directory / "directory").mkdir()
    with (directory / "huge").open("wb") as file:
        file.truncate(1 << 30)
    (directory / "unreadable").symlink_to("/proc/self/mem")  # a regular file that not even root can read from its start
    return directory


Command = tuple[Sequence[str], Mapping[str, str]]
"""Arguments and variables."""


def run_all(commands: Mapping[str, Command]) -> dict[str, tuple[int, str, str]]:
    """The code, the output and the errors of commands that run at once."""
    started = {
        name: subprocess.Popen(
            command(*arguments),
            env=clean_environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        for name, (arguments, variables) in commands.items()
    }
    ended = {}
    try:
        for name, process in started.items():
            output, errors = process.communicate(timeout=TIMEOUT_S)
            ended[name] = process.returncode, output, without_progress(errors)
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    return ended


def assert_refused(commands: Mapping[str, Command], place: Path) -> None:
    for name, (code, output, errors) in run_all(commands).items():
        assert (code, output) == (2, ""), (name, errors)
        assert errors.count("\n") == 1, errors
        assert f"{place / name}" in errors


@pytest.mark.parametrize("setting", ["config", "web-config"])
def test_a_configuration_file_that_is_none_is_refused(setting: str, place: Path) -> None:
    flags = (*AGENT, "--exporters", "none")
    assert_refused({kind: ((*flags, f"--{setting}", str(place / kind)), {}) for kind in KINDS}, place)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (key, name)
        for key, setting in PEM_FILES.items()
        for name in (setting.flag, *(each for each in setting.variables if each.startswith("OTEL_EXPORTER_")))
    ],
)
def test_a_certificate_or_key_of_otlp_that_is_no_file_is_refused(key: str, name: str, place: Path) -> None:
    flags = [*AGENT, "--exporters", "otlp", "--otlp-endpoint", "https://127.0.0.1:1"]
    if key == "otlp-client-key":
        flags += ["--otlp-client-certificate", str(place / "cert.pem")]
    is_flag = name.startswith("--")
    commands: dict[str, Command] = {
        kind: ((*flags, name, str(place / kind)), {}) if is_flag else (flags, {name: str(place / kind)})
        for kind in KINDS
    }
    assert_refused(commands, place)


@pytest.mark.parametrize("field", WEB_FILES)
def test_a_certificate_or_key_of_the_web_configuration_that_is_no_file_is_refused(
    field: str, place: Path, tmp_path: Path
) -> None:
    commands: dict[str, Command] = {}
    for kind in KINDS:
        pem = {"cert_file": place / "cert.pem", "key_file": place / "key.pem", field: place / kind}
        text = json.dumps(
            {key: str(path) for key, path in pem.items()} | {"client_auth_type": "VerifyClientCertIfGiven"}
        )
        if field != "client_ca_file":
            text = text.replace('"VerifyClientCertIfGiven"', '"NoClientCert"')
        (tmp_path / f"{kind}.yaml").write_text(f"tls_server_config: {text}\n", encoding="utf-8")
        flags = (*AGENT, "--exporters", "prometheus", "--web-config", str(tmp_path / f"{kind}.yaml"))
        commands[kind] = flags, {}
    assert_refused(commands, place)


def findings(name: str, ended: tuple[int, str, str]) -> dict[str, dict[str, str]]:
    """The findings of a doctor by subject."""
    code, output, errors = ended
    assert (code, errors) in ((0, ""), (1, "")), name
    return {each["subject"]: each for each in json.loads(output)["findings"]}


def test_directories_and_sockets_that_are_none_are_findings_of_doctor(place: Path) -> None:
    """The agent runs without them, and says so."""
    together = [key for key in DOCTOR_SUBJECTS if key != "proc-root"]
    commands: dict[str, Command] = {}
    for kind in KINDS:
        flags = [f"--{key}={place / kind}" for key in (*together, "sys-root")]
        commands[kind] = ("doctor", "--format", "json", *flags), {}
        commands[f"{kind} as /proc"] = ("doctor", "--format", "json", f"--proc-root={place / kind}"), {}
    ended = run_all(commands)
    for kind in KINDS:
        found = findings(kind, ended[kind]) | {"proc": findings(kind, ended[f"{kind} as /proc"])["proc"]}
        for key, subject in DOCTOR_SUBJECTS.items():
            is_valid = (key, kind) == ("state-dir", "directory")
            assert (found[subject]["verdict"] == "ok") is is_valid, (key, kind)
            assert str(place / kind) in found[subject]["found"], (key, kind)


@pytest.mark.parametrize(("file", "kinds"), [("ca.pem", KINDS), ("cert.pem", ("pipe",)), ("key.pem", ("pipe",))])
def test_a_certificate_of_docker_that_is_no_file_is_a_finding_of_doctor(
    file: str, kinds: Sequence[str], place: Path, tmp_path: Path
) -> None:
    commands: dict[str, Command] = {}
    for kind in kinds:
        directory = tmp_path / kind
        directory.mkdir()
        for name, source in (("ca.pem", "cert.pem"), ("cert.pem", "cert.pem"), ("key.pem", "key.pem")):
            (directory / name).symlink_to(place / (kind if name == file else source))
        tls = ("--docker-host", "tcp://127.0.0.1:1", "--docker-tls-verify", "--docker-cert-path", str(directory))
        commands[kind] = ("doctor", "--format", "json", "--environment", "docker", *tls), {}
    for kind, ended in run_all(commands).items():
        found = findings(kind, ended)["docker"]
        assert found["verdict"] == "degraded"
        assert found["found"].startswith(f"unavailable: {tmp_path / kind / file}: "), kind


def test_every_setting_that_is_a_path_is_tested_here() -> None:
    assert {"web-config", *PEM_FILES, *DOCTOR_SUBJECTS, "docker-cert-path", "sys-root"} == PATHS
    assert len(PEM_FILES) == 3
