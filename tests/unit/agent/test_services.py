"""Services start in order, stop in reverse order, and stop all if one cannot start."""

from __future__ import annotations

import logging

import pytest

from otel_gpu.agent.services import OnStop, Services
from otel_gpu.errors import Unavailable


class Recorded:
    """A service that records its calls in a list shared by several."""

    def __init__(
        self, name: str, calls: list[str], start_error: Exception | None = None, stop_error: Exception | None = None
    ) -> None:
        self.name, self.calls, self.start_error, self.stop_error = name, calls, start_error, stop_error

    def start(self) -> None:
        self.calls.append(f"start {self.name}")
        if self.start_error is not None:
            raise self.start_error

    def stop(self) -> None:
        self.calls.append(f"stop {self.name}")
        if self.stop_error is not None:
            raise self.stop_error


def test_services_start_in_order_and_stop_in_reverse_order() -> None:
    calls: list[str] = []
    services = Services(Recorded("a", calls), Services(Recorded("b", calls), Recorded("c", calls)))
    services.start()
    services.stop()
    assert calls == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(RuntimeError("can't start new thread"), Unavailable), (OSError("no space"), OSError)],
    ids=["no thread", "other"],
)
def test_a_service_that_cannot_start_stops_all(error: Exception, raised: type[Exception]) -> None:
    calls: list[str] = []
    # A service that was never started may hold an address since its construction, so it is stopped as well.
    services = Services(Recorded("a", calls), Recorded("b", calls, start_error=error), Recorded("c", calls))
    with pytest.raises(raised, match=str(error)):
        services.start()
    assert calls == ["start a", "start b", "stop c", "stop b", "stop a"]


def test_a_service_that_fails_to_stop_is_logged_and_the_others_are_stopped(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    services = Services(Recorded("a", calls), Recorded("b", calls, stop_error=OSError("busy")))
    services.start()
    services.stop()
    assert calls == ["start a", "start b", "stop b", "stop a"]
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "Recorded failed to stop: OSError: busy")


def test_services_stop_once() -> None:
    calls: list[str] = []
    services = Services(OnStop(lambda: calls.append("released")))
    services.stop()
    services.stop()
    assert calls == ["released"]
