"""Fixtures of tests with real programs. A module shares a browser, a demo agent or a Docker engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.real.chromium import Browser, chromium
from tests.real.docker_engine import DockerEngine, docker_engine
from tests.real.stepped_agent import SteppedAgent, stepped_agent

PRICES: Final = {"price-gpu-hour": "A100=1.8,H100=3.2,L4=0.6", "currency": "EUR"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def demo() -> Iterator[SteppedAgent]:
    """An agent on the demo with prices, after two minutes."""
    with stepped_agent(flags=PRICES) as agent:
        for _ in range(24):
            agent.advance(5)
        yield agent


@pytest.fixture(scope="module")
def engine() -> Iterator[DockerEngine]:
    with docker_engine() as started:
        yield started
