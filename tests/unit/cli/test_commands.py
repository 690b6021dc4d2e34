"""The commands as processes of their own: what a shell, a pipe, an init system and a browser see of them."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_gpu import cli
from otel_gpu.agent.engine import Engine
from otel_gpu.agent.resources import resources_of
from otel_gpu.cli.once import exported
from otel_gpu.cli.stdio import stdout_paint
from otel_gpu.clock import ManualClock
from otel_gpu.config import load
from otel_gpu.metrics.agent_values import SelfAccount
from otel_gpu.sources.base import NameRead
from otel_gpu.version import __version__
from otel_gpu.view.terminal import Style
from tests.agent_process import agent_process
from tests.builders import (
    CONTAINER,
    CONTAINER_ID,
    FakeGpus,
    FakeNames,
    FakeProcesses,
    facts,
    gpu,
    gpu_read,
    listed,
    process_read,
)
from tests.cli import clean_environment, command, otel_gpu, without_progress

ANY_PORT = ("--listen", "127.0.0.1:0")
SIMULATED = "*** SIMULATED HOST: no figure here is from a real GPU ("
STOPS_WITHIN_S = 5.0


class Terminal(io.StringIO):
    """A stream that people look at."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def shell(script: str, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a shell script with ``words`` as its arguments."""
    result = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *words],
        env=clean_environment({"PYTHONUNBUFFERED": "", **(environment or {})}),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    result.stderr = without_progress(result.stderr)
    return result


# ---------------------------------------------------------------------------- once


def test_once_on_a_simulated_host_prints_the_table_and_a_warning() -> None:
    result = otel_gpu("once", "--source", "sim")
    assert result.returncode == 0
    assert result.stderr == f"{SIMULATED}requested with --source sim) ***\n"
    assert "SIMULATED HOST" in result.stdout.splitlines()[0]
    assert "GiB" in result.stdout
    assert "\x1b" not in result.stdout


def test_in_a_pipe_no_name_is_cut_unless_columns_is_set() -> None:
    piped = otel_gpu("once", "--source", "sim").stdout
    assert "…" not in piped
    assert "research/finetune-13b-worker-0 " in piped
    assert max(map(len, piped.splitlines())) > 120
    narrow = otel_gpu("once", "--source", "sim", environment={"COLUMNS": "80"}).stdout
    assert max(map(len, narrow.splitlines())) <= 80


def test_once_for_prometheus_prints_what_the_agent_would_serve() -> None:
    environment = {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test", "OTEL_SERVICE_NAME": "mine"}
    result = otel_gpu("once", "--source", "sim", "--format", "prometheus", environment=environment)
    assert result.returncode == 0
    blocks = {family.name: family for family in text_string_to_metric_families(result.stdout)}
    assert all(sample.labels["deployment_environment"] == "test" for one in blocks.values() for sample in one.samples)
    assert {sample.labels["service_name"] for sample in blocks["hw_energy_joules"].samples} == {"mine"}
    held, limit = (
        sum(sample.value for sample in blocks[name].samples)
        for name in ("gpu_device_memory_usage_bytes", "hw_gpu_memory_limit_bytes")
    )
    assert held == limit > 0


def test_once_as_otlp_prints_one_request_with_a_resource_for_the_host_and_for_each_workload() -> None:
    result = otel_gpu("once", "--source", "sim", "--format", "otlp", environment={"OTEL_SERVICE_NAME": "mine"})
    assert result.returncode == 0
    [line] = result.stdout.splitlines()
    resources = [
        {one["key"]: one["value"]["stringValue"] for one in resource["resource"]["attributes"]}
        for resource in json.loads(line)["resourceMetrics"]
    ]
    assert [attributes.get("service.name") for attributes in resources] == ["mine", *[None] * (len(resources) - 1)]
    assert all("gpu.workload.id" in attributes for attributes in resources[1:])


@pytest.mark.parametrize("form", ["prometheus", "otlp"])
def test_once_exports_workloads_that_still_await_names(form: str) -> None:
    clock = ManualClock()
    engine = Engine(
        gpus=FakeGpus(gpu_read(gpu(0, [listed(1)]))),
        processes=FakeProcesses(process_read(facts(1, CONTAINER))),
        names=[FakeNames(NameRead(pending=frozenset({CONTAINER_ID})))],
        clock=clock,
    )
    engine.sample()
    clock.advance(1.0)
    attribution = engine.sample()
    assert [workload.awaiting_names for workload in attribution.workloads] == [True]
    settings = load({}, {}).config
    account = SelfAccount(started_ns=0, cpu_s=lambda: 0.0, memory_bytes=lambda: None)
    text = exported(attribution, account.stats(), settings, resources_of(settings), form)
    assert CONTAINER_ID in text
    assert "gpu_process_memory" in text or "gpu.process.memory" in text


def test_once_as_json_prints_one_object_about_the_time_between_two_samples() -> None:
    result = otel_gpu("once", "--source", "sim", "--format", "json", "--seed", "3")
    assert result.returncode == 0
    document = json.loads(result.stdout)
    assert list(document) == ["gpus", "workloads", "processes", "sources"]
    assert any(one["energy"]["delta_mj"] for one in document["gpus"])
    assert all(source["ok"] for source in document["sources"])


def test_once_without_nvml_is_one_line_on_stderr_nothing_on_stdout_and_exit_1(no_nvml: Mapping[str, str]) -> None:
    for output in ("table", "json"):
        result = otel_gpu("once", "--format", output, environment=no_nvml)
        assert (result.returncode, result.stdout) == (1, "")
        (line,) = result.stderr.splitlines()
        assert line.startswith("otel-gpu: NVML: libnvidia-ml.so.1 cannot be loaded: ")


def test_once_with_only_sleeping_gpus_is_one_line_and_exit_1(tmp_path: Path, no_nvml: Mapping[str, str]) -> None:
    power = tmp_path / "sys/bus/pci/devices/0000:3b:00.0/power"
    driver = tmp_path / "sys/bus/pci/drivers/nvidia"
    power.mkdir(parents=True)
    driver.mkdir(parents=True)
    (driver / "0000:3b:00.0").touch()
    (power / "runtime_status").write_text("suspended\n", encoding="ascii")
    result = otel_gpu("once", "--sys-root", str(tmp_path / "sys"), environment=no_nvml)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("otel-gpu: every GPU is asleep")


def test_a_reader_that_stops_reading_causes_no_traceback() -> None:
    result = shell('"$@" | head -c 10', *command("once", "--source", "sim"))
    assert result.stdout == f"otel-gpu {__version__}"[:10]
    assert result.stderr == f"{SIMULATED}requested with --source sim) ***\n"


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("config",),
        ("once", "--source", "sim"),
        ("once", "--source", "sim", "--format", "json"),
    ],
    ids=" ".join,
)
def test_a_pipe_without_a_reader_causes_no_traceback(arguments: Sequence[str], closed_pipe: int) -> None:
    result = subprocess.run(
        command(*arguments),
        env=clean_environment({"PYTHONUNBUFFERED": ""}),
        stdout=closed_pipe,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert [line for line in result.stderr.splitlines() if not line.startswith(SIMULATED)] == []


@pytest.mark.long
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("run", "--help"), ("--version",), ("config",), ("once", "--source", "sim"), ("demo", *ANY_PORT)],
    ids=" ".join,
)
def test_a_full_disk_is_one_plain_line_and_exit_1(arguments: Sequence[str], unbuffered: str) -> None:
    result = shell('exec "$@" >/dev/full', *command(*arguments), environment={"PYTHONUNBUFFERED": unbuffered})
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "otel-gpu: cannot write to standard output: No space left on device"
    assert "internal error" not in result.stderr
    assert "Exception" not in result.stderr


def test_a_full_stderr_changes_neither_output_nor_exit_code() -> None:
    result = shell('exec "$@" 2>/dev/full', *command("once", "--source", "sim"))
    assert (result.returncode, "GiB" in result.stdout) == (0, True)
    assert shell('exec "$@" 2>/dev/full', *command("onec")).returncode == 2


def test_an_interrupt_is_silent_while_modules_are_still_being_loaded(tmp_path: Path) -> None:
    """A module that the command line needs is replaced by one that is interrupted while it is imported."""
    # Children of a script in the background ignore interrupts.
    interrupted = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    (tmp_path / "argparse.py").write_text(interrupted, encoding="utf-8")
    result = otel_gpu("once", environment={"PYTHONPATH": str(tmp_path)})
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("config", "--help"), ("onec",)], ids=" ".join)
def test_help_and_errors_do_not_load_drivers_and_clients(arguments: Sequence[str]) -> None:
    heavy = {"yaml", "pynvml", "http.server", "opentelemetry", "docker", "otel_gpu.cli.run", "otel_gpu.agent.engine"}
    script = (
        "import sys, otel_gpu.cli\n"
        "light = set(sys.modules)\n"
        "try:\n"
        "    otel_gpu.cli.main(sys.argv[2:])\n"
        "except SystemExit:\n"
        "    pass\n"
        "loaded = set(sys.argv[1].split()) & set(sys.modules)\n"
        "early = {'argparse', 'logging', 'dataclasses', 'otel_gpu.config'} & light\n"
        "sys.exit(repr((loaded, early)) if loaded or early else 0)\n"
    )
    result = subprocess.run(
        [sys.executable, "-S", "-c", script, " ".join(heavy), *arguments],
        env=clean_environment({"PYTHONPATH": str(Path(cli.__file__).parents[2])}),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.long
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_a_stream_that_the_caller_closed_is_no_error(closed: str) -> None:
    result = shell(f'exec "$@" {closed}', *command("once", "--source", "sim"))
    assert result.returncode == 0
    assert "internal error" not in result.stdout + result.stderr
    assert ("GiB" in result.stdout) is not closed.startswith(">")


@pytest.mark.long
def test_output_that_the_terminal_cannot_show_is_replaced() -> None:
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = otel_gpu("once", "--source", "sim", environment=environment)
    assert result.returncode == 0
    assert result.stdout.isascii()
    assert "?" in result.stdout
    assert "GiB" in result.stdout
    failed = otel_gpu("once", "--source", "gpü", environment=environment)
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("stream", "variables", "coloured"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True),  # no-color.org: only when not empty
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
    ids=["a terminal", "an empty NO_COLOR", "NO_COLOR", "a dumb terminal", "a pipe"],
)
def test_colours_need_a_terminal_and_respect_no_color(
    stream: io.StringIO, variables: Mapping[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stream)
    assert ("\x1b" in stdout_paint()("text", Style.RED)) is coloured


# ---------------------------------------------------------------------------- run


def test_the_agent_prints_its_addresses_serves_there_and_ends_on_sigterm(tmp_path: Path) -> None:
    with agent_process("run", "--source", "sim", *ANY_PORT, directory=tmp_path) as agent:
        agent.until(lambda: agent.get("/readyz").status == 200)
        assert agent.get("/healthz").body == "ok\n"
        assert "SIMULATED HOST" in agent.get("/").body
        assert json.loads(agent.get("/api/attribution").body)["gpus"]
        code, took_s = agent.end(signal.SIGTERM)
        assert code == 0
        assert took_s < STOPS_WITHIN_S
        assert agent.stdout == ""
        assert "Traceback" not in agent.stderr


def test_with_json_every_line_on_stderr_is_json_and_one_has_the_addresses(tmp_path: Path) -> None:
    flags = ("--log-format", "json", "--exporters", "otlp,prometheus", "--otlp-endpoint", "http://127.0.0.1:1")
    with agent_process("run", "--source", "sim", *flags, *ANY_PORT, directory=tmp_path) as agent:
        agent.until(lambda: agent.get("/readyz").status == 200)
        assert agent.end(signal.SIGTERM)[0] == 0
        lines = [json.loads(line) for line in agent.stderr.splitlines()]
        (running,) = [line for line in lines if line["msg"] == "otel-gpu is running"]
        assert running["version"] == __version__
        assert running["exporters"] == ["http://127.0.0.1:1"]
        assert [url.removeprefix(f"http://{agent.address}") for url in running["urls"]] == [
            "/", "/metrics", "/api/attribution", "/healthz"
        ]  # fmt: skip
        (simulated,) = [line for line in lines if "simulated" in line]
        assert (simulated["level"], simulated["simulated"]) == ("warning", "requested with --source sim")


@pytest.mark.parametrize(("chosen", "is_logged"), [((), False), (("--log-format", "logfmt"), True)])
def test_with_a_chosen_logfmt_every_line_on_stderr_is_logfmt(
    chosen: Sequence[str], is_logged: bool, tmp_path: Path
) -> None:
    with agent_process("run", "--source", "sim", *chosen, *ANY_PORT, directory=tmp_path) as agent:
        agent.until(lambda: "healthz" in agent.stderr)
        begun = [line.startswith("time=") for line in agent.stderr.splitlines()]
    assert all(begun) if is_logged else not any(begun)


def test_a_fatal_error_is_a_log_record_if_a_format_is_chosen(tmp_path: Path) -> None:
    flags = ("--source", "sim", "--listen", "192.0.2.1:1", "--log-format")  # a documentation address, which no host has
    result = otel_gpu("run", *flags, "json")
    assert result.returncode == 2
    (line,) = map(json.loads, result.stderr.splitlines())
    assert line["level"] == "error"
    assert line["msg"].startswith("cannot listen on 192.0.2.1:1: ")


def test_the_agent_ends_on_sigint_as_well(tmp_path: Path) -> None:
    with agent_process("demo", "--interval", "1s", *ANY_PORT, directory=tmp_path) as agent:
        agent.until(lambda: "GiB" in agent.stdout)
        assert agent.stderr.startswith(f"{SIMULATED}it is the demo) ***\n"), "--source is not on the command line"
        code, took_s = agent.end(signal.SIGINT)
        assert code == 0
        assert took_s < STOPS_WITHIN_S
        assert "Traceback" not in agent.stderr


def test_sigterm_does_not_wait_for_a_driver_that_hangs_while_it_is_opened(tmp_path: Path) -> None:
    script = (
        "import threading, otel_gpu.cli, otel_gpu.cli.run\n"
        "def hang(*_, **__):\n"
        "    print('opening', flush=True)\n"
        "    threading.Event().wait(60)\n"
        "otel_gpu.cli.run.open_host = hang\n"
        "otel_gpu.cli.main(['run'])\n"
    )
    with agent_process(directory=tmp_path, words=[sys.executable, "-c", script]) as agent:
        agent.until(lambda: "opening" in agent.stdout)
        code, took_s = agent.end(signal.SIGTERM)
        assert code == -signal.SIGTERM
        assert took_s < STOPS_WITHIN_S
        assert agent.stderr == ""


def test_an_address_in_use_is_one_line_and_exit_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = otel_gpu("run", "--source", "sim", "--listen", address)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"otel-gpu: cannot listen on {address}: Address already in use; "
        "choose another with --listen HOST:PORT (port 0: any free one)\n"
    )


def test_without_nvml_the_agent_stays_up_and_logs_the_reason(no_nvml: Mapping[str, str], tmp_path: Path) -> None:
    with agent_process("run", *ANY_PORT, directory=tmp_path, environment=no_nvml) as agent:
        agent.until(lambda: "libnvidia-ml.so.1" in agent.get("/readyz").body)
        assert agent.get("/healthz").status == 200
        ready = agent.get("/readyz")
        assert ready.status == 503
        assert ready.body.startswith("nvml: NVML: libnvidia-ml.so.1 cannot be loaded")
        document = json.loads(agent.get("/api/attribution").body)
        assert (document["gpus"], document["workloads"], document["processes"]) == ([], [], [])
        nvml = next(source for source in document["sources"] if source["name"] == "nvml")
        assert nvml["ok"] is False
        assert "libnvidia-ml.so.1 cannot be loaded" in nvml["reason"]
        assert "The workloads on the GPUs are unknown" in agent.get("/").body
        agent.until(lambda: 'msg="nvml is unavailable' in agent.stderr)
        code, took_s = agent.end()
        assert code == 0
        assert took_s < STOPS_WITHIN_S
        assert agent.stderr.count("nvml is unavailable") == 1  # once, however often it is tried
        assert "Traceback" not in agent.stderr


def test_auto_without_nvml_is_simulated_with_a_warning_and_a_pipe_gets_the_table_once(
    no_nvml: Mapping[str, str], tmp_path: Path
) -> None:
    flags = ("--source", "auto", "--view", "--interval", "1s")
    with agent_process("run", *flags, *ANY_PORT, directory=tmp_path, environment=no_nvml) as agent:
        agent.until(lambda: "GiB" in agent.stdout)
        reason = agent.stderr.splitlines()[0]
        assert reason.startswith(f"{SIMULATED}NVML: libnvidia-ml.so.1 cannot be loaded")
        title = agent.stdout.splitlines()[0]
        assert "SIMULATED HOST: no figure here is from a real GPU" in title
        assert "POWER is the mean of the last " in agent.stdout, "of a single sample there is none"
        agent.until(lambda: title not in agent.get("/").body)  # another sample has been taken by now
        assert agent.end()[0] == 0
        assert agent.stdout.count("SIMULATED HOST") == 1


def test_a_closed_pipe_of_the_view_ends_the_agent_without_a_traceback(closed_pipe: int) -> None:
    result = subprocess.run(
        command("demo", "--interval", "1s", *ANY_PORT),
        env=clean_environment(),
        stdout=closed_pipe,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr
