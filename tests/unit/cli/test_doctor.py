from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_gpu.cli import main
from otel_gpu.cli.doctor import ConcurrentChecks
from otel_gpu.doctor.findings import Finding, Verdict, ok
from tests.cli import otel_gpu
from tests.kubelet_servers import Kubelet, devices, given, pod, socket_directory
from tests.unit.export.collectors import BlackHole

# ---------------------------------------------------------------------------- concurrent checks


def test_checks_run_concurrently_and_are_reported_in_order() -> None:
    both = threading.Barrier(2, timeout=30)

    def check(name: str) -> Finding:
        both.wait()  # neither ends before the other has started
        return ok(name, "fine")

    found = ConcurrentChecks([("a", lambda: check("a")), ("b", lambda: check("b"))], deadline_s=30).findings()
    assert [finding.subject for finding in found] == ["a", "b"]


def test_a_check_that_blocks_or_fails_is_a_finding_and_delays_no_other() -> None:
    never = threading.Event()

    def broken() -> Finding:
        raise KeyError("x")

    def stuck() -> Finding:
        never.wait(30)
        return ok("stuck", "late")

    checks = ConcurrentChecks(
        [("stuck", stuck), ("broken", broken), ("fine", lambda: ok("fine", "fine"))], deadline_s=0.2
    )
    late, failed, fine = checks.findings()
    never.set()
    assert (late.subject, late.verdict, late.fix is not None) == ("stuck", Verdict.DEGRADED, True)
    assert late.found.startswith("no answer within ")
    assert (failed.verdict, failed.found) == (Verdict.DEGRADED, "internal error: KeyError: 'x'")
    assert fine.verdict is Verdict.OK


# ---------------------------------------------------------------------------- the whole command


def test_the_command_prints_json_and_exits_1_when_blind(no_nvml: Mapping[str, str], tmp_path: Path) -> None:
    flags = ("--exporters", "none", "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path / "state"))
    result = otel_gpu("doctor", "--format", "json", *flags, environment=no_nvml)
    assert (result.returncode, result.stderr) == (1, "")
    document = json.loads(result.stdout)
    assert set(document) == {"version", "verdict", "findings"}
    assert document["verdict"] == "blind"
    by_subject = {finding["subject"]: finding for finding in document["findings"]}
    assert len(by_subject) == len(document["findings"])
    assert all(set(finding) == {"subject", "verdict", "found", "fix"} for finding in document["findings"])
    assert all(finding["fix"] for finding in document["findings"] if finding["verdict"] in {"degraded", "blind"})
    expected = {
        "nvml",
        "driver",
        "device files",
        "series",
        "scope",
        "pid namespace",
        "cgroup namespace",
        "proc",
        "capabilities",
    }
    expected |= {"environment", "docker", "podman", "cri", "pod-resources", "kubernetes", "slurm"}
    expected |= {"clock", "exporters", "listen", "state", "control"}
    assert expected == set(by_subject)
    assert by_subject["nvml"]["verdict"] == "blind"
    assert not (tmp_path / "state").exists()


@pytest.mark.long
def test_a_receiver_that_never_answers_is_degraded_and_does_not_block_the_command(no_nvml: Mapping[str, str]) -> None:
    hole = BlackHole()
    try:
        result = otel_gpu("doctor", "--otlp-endpoint", hole.url, "--listen", "127.0.0.1:0", environment=no_nvml)
    finally:
        hole.close()
    [line] = [line for line in result.stdout.splitlines() if line.split()[1:2] == ["otlp"]]
    assert line.startswith("degraded")
    assert "Traceback" not in result.stderr


def test_settings_that_run_refuses_are_refused_by_doctor(no_nvml: Mapping[str, str]) -> None:
    result = otel_gpu("doctor", "--otlp-endpoint", "https://c:1", "--otlp-insecure", "true", environment=no_nvml)
    assert (result.returncode, result.stdout) == (2, "")
    assert "otlp-insecure" in result.stderr


@pytest.mark.parametrize("key", ["otlp-certificate", "otlp-client-certificate", "otlp-client-key"])
@pytest.mark.parametrize("command", ["doctor", "config", "run"])
def test_a_pipe_instead_of_a_certificate_is_refused_without_opening_it(
    command: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    monkeypatch.setattr(Path, "open", lambda path, *_: pytest.fail(f"{path} is opened"))
    flags = [f"--{key}", str(pipe), "--otlp-endpoint", "https://127.0.0.1:1"]
    assert main([command, *flags]) == 2
    is_key = key == "otlp-client-key"
    problem = "needs otlp-client-certificate, too" if is_key else "cannot be read: it is not a regular file"
    refusal = f"otel-gpu: --{key}: '{pipe}' {problem}\n"
    assert capsys.readouterr().err == refusal


def test_doctor_lists_used_and_possible_name_sources(no_nvml: Mapping[str, str], tmp_path: Path) -> None:
    away = tmp_path / "away.sock"
    result = otel_gpu("doctor", "--docker-host", f"unix://{away}", "--kubernetes-api", "never", environment=no_nvml)
    assert (result.returncode, result.stderr) == (1, "")
    rows = {words[1]: words for line in result.stdout.splitlines() if len(words := line.split(maxsplit=2)) == 3}
    assert rows["environment"][0] == "ok"
    assert "docker" in rows["environment"][2]
    assert rows["docker"][0] == "degraded"
    assert str(away) in rows["docker"][2]
    assert rows["kubernetes"][0] == "unused"


def test_doctor_reports_conflicts_between_name_sources(no_nvml: Mapping[str, str]) -> None:
    """A pod was granted a GPU, and no source knows the id of its container."""
    with socket_directory() as directory:
        kubelet = Kubelet(directory / "kubelet.sock")
        kubelet.pods = [
            pod("train-0", given("main", devices("nvidia.com/gpu", "GPU-11111111-2222-3333-4444-555555555555")))
        ]
        kubelet.start()
        try:
            sockets = ("--pod-resources-socket", str(kubelet.path), "--cri-socket", str(directory / "away.sock"))
            result = otel_gpu("doctor", *sockets, "--environment", "kubernetes", environment=no_nvml)
        finally:
            kubelet.stop()
    rows = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
    [(verdict, _, found)] = [row for row in rows if row[1] == "pod-resources"]
    assert verdict == "degraded"
    assert "no source knows the ids of containers of pods" in found


def test_doctor_without_a_proc_is_blind(no_nvml: Mapping[str, str], tmp_path: Path) -> None:
    result = otel_gpu("doctor", "--proc-root", str(tmp_path / "none"), environment=no_nvml)
    assert (result.returncode, result.stderr) == (1, "")
    assert any(line.split()[:2] == ["blind", "proc"] for line in result.stdout.splitlines())
