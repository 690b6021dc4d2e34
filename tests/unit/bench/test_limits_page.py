"""docs/limits.md has the recorded figures, and the limits that it states are those of the code."""

from __future__ import annotations

import json

from bench.limits.__main__ import PAGE, RECORD, page
from otel_gpu.export.batches import LARGEST_REQUEST_BYTES
from otel_gpu.metrics.collect import MAX_SERIES
from otel_gpu.web.bodies import MAX_BODIES_BYTES
from otel_gpu.web.server import Limits


def test_the_page_has_the_recorded_figures() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, record) == text, "run: python -m bench.limits page"


def test_the_page_states_the_limits_of_the_code() -> None:
    limits, text = Limits(), PAGE.read_text(encoding="utf-8")
    assert f"| {MAX_SERIES:,} | those of processes are left out" in text
    assert f"| {MAX_BODIES_BYTES >> 20} MiB | a response waits up to {limits.client_timeout_s:g} s" in text
    assert f"| {limits.max_connections} and {limits.max_streams} followers" in text
    assert f"| {LARGEST_REQUEST_BYTES >> 20} MiB; one at a time" in text


def test_a_host_at_both_caps_is_within_the_recorded_memory() -> None:
    """The order of shedding keeps an agent below the limit of the manifests, with all clients at once."""
    hosts = json.loads(RECORD.read_text(encoding="utf-8"))["hosts"]
    assert max(host["peak_bytes"] for host in hosts) < 384 << 20
    assert all(host["series"] <= MAX_SERIES for host in hosts)
    assert [host["dropped_series"] > 0 for host in hosts] == [host["with_prices"] for host in hosts]
