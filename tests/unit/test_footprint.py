"""A process that runs for months: little memory, and little time spent on it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, gc
from otel_gpu.footprint import bound_heaps, settle
bound_heaps()
ring = []
ring.append(ring)
del ring
settle()
print(gc.get_freeze_count() > 1000, gc.get_threshold()[0] > 700, gc.isenabled(), len(gc.garbage))
"""


def test_what_is_there_is_left_alone_and_what_comes_is_still_collected() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout, done.stderr) == ("True True True 0\n", "")


def test_an_allocator_that_cannot_be_told_is_left_as_it_is() -> None:
    script = (
        "import ctypes\n"
        "class Other: pass\n"
        "ctypes.CDLL = lambda *_: Other()\n"
        "from otel_gpu.footprint import bound_heaps\n"
        "bound_heaps()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_agent_has_only_in_memory_what_an_agent_needs() -> None:
    others = {
        *("otel_gpu.sources.sim", "otel_gpu.sources.names.slurm", "otel_gpu.compat.exporters", "otel_gpu.doctor"),
        *("otel_gpu.top", "docker", "grpc", "google.protobuf", "prometheus_client", "yaml"),
    }
    script = "import sys, otel_gpu.commands; print(*(set(sys.argv[1:]) & set(sys.modules)), end='')"
    result = subprocess.run(
        [sys.executable, "-c", script, *others], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


UNGUESSED = """
import sys
from otel_gpu.footprint import guess_no_encodings
guess_no_encodings()
import requests
from otel_gpu.export import otlp_http
answer = requests.Response()
answer._content = "n\u00f6".encode()
guessers = [name for name in sys.modules if name.startswith("charset_normalizer.")]
print(answer.encoding, answer.text == "n\u00f6", guessers)
"""


def test_requests_takes_texts_without_an_encoding_for_utf_8_and_says_nothing_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", UNGUESSED], capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout, done.stderr) == ("None True []\n", "")


def test_who_has_a_guesser_already_keeps_it() -> None:
    script = (
        "import charset_normalizer, sys\n"
        "from otel_gpu.footprint import guess_no_encodings\n"
        "guess_no_encodings()\n"
        "import requests\n"
        "print(sys.modules['charset_normalizer'] is charset_normalizer)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("version", ["2.31.0", "1.0", "2", "x.y"])
def test_versions_of_requests_that_need_a_guesser_have_one(version: str) -> None:
    script = (
        "import sys, otel_gpu.footprint as footprint\n"
        "footprint.version = lambda _: sys.argv[1]\n"
        "footprint.guess_no_encodings()\n"
        "import requests\n"
        "print(sys.modules['charset_normalizer'] is not None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, version], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
