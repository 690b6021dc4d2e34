"""``tools/collector/build.sh`` with a Go that only pretends: what it prints and leaves, how often it builds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "tools" / "collector" / "build.sh"
SYSTEM = "/usr/bin:/bin"
# Installs a builder that notes that it was run, takes its time, and makes a program.
GO = """#!/bin/sh
[ ! -e "$FAIL" ] || { echo 'go: no such module' >&2; exit 1; }
cat >"$GOBIN/builder" <<'END'
#!/bin/sh
echo "$@" >>"$BUILDS"
sleep 0.3
mkdir out
printf '#!/bin/sh\\n' >out/otelcol
chmod +x out/otelcol
END
chmod +x "$GOBIN/builder"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A machine with that Go and an empty cache."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "go").write_text(GO, encoding="utf-8")
    (programs / "go").chmod(0o755)
    return {
        "PATH": f"{programs}:{SYSTEM}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "BUILDS": str(tmp_path / "builds"),
        "FAIL": str(tmp_path / "fail"),
    }


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BUILD, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )


def run(environment: dict[str, str], *arguments: str) -> tuple[int | None, str, str]:
    process = start(environment, *arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def builds(environment: dict[str, str]) -> int:
    path = Path(environment["BUILDS"])
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def kept(environment: dict[str, str]) -> list[str]:
    """What is in the cache besides the lock."""
    directory = Path(environment["XDG_CACHE_HOME"]) / "otel-gpu"
    return sorted(path.name for path in directory.iterdir() if path.suffix != ".lock")


def test_it_is_built_once_and_only_its_path_is_printed(environment: dict[str, str]) -> None:
    code, out, err = run(environment)
    assert code == 0, err
    assert kept(environment) == [Path(out.strip()).name]
    assert os.access(out.strip(), os.X_OK)
    assert run(environment) == (0, out, "")
    assert run(environment, "--find") == (0, out, "")
    assert builds(environment) == 1


def test_two_at_once_build_once_and_print_the_same(environment: dict[str, str]) -> None:
    processes = [start(environment) for _ in range(3)]
    printed = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(printed) == 1
    assert builds(environment) == 1


def test_a_failed_build_reports_the_reason_and_leaves_nothing(environment: dict[str, str]) -> None:
    Path(environment["FAIL"]).touch()
    assert run(environment) == (
        1,
        "",
        "collector: building v0.159.0 (once; this takes minutes)…\ngo: no such module\ncollector: the build failed\n",
    )
    assert kept(environment) == []
    Path(environment["FAIL"]).unlink()
    assert run(environment)[0] == 0


def test_finding_never_builds(environment: dict[str, str]) -> None:
    assert run(environment, "--find") == (1, "", "collector: not built yet; make collector\n")
    assert builds(environment) == 0


def test_without_go_it_is_one_line(environment: dict[str, str]) -> None:
    if (Path("/usr/bin/go")).exists():
        pytest.skip("Go is among the system's own programs here")
    code, out, err = run(environment | {"PATH": SYSTEM})
    assert (code, out) == (1, "")
    assert err == "collector: building it needs Go; or name a binary in OTEL_GPU_COLLECTOR\n"


def test_a_named_binary_is_used_if_it_is_executable(environment: dict[str, str], tmp_path: Path) -> None:
    assert run(environment | {"OTEL_GPU_COLLECTOR": "/bin/sh"}) == (0, "/bin/sh\n", "")
    code, out, err = run(environment | {"OTEL_GPU_COLLECTOR": str(tmp_path)})
    assert (code, out, err) == (1, "", f"collector: OTEL_GPU_COLLECTOR={tmp_path} is not a program\n")
