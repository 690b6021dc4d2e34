"""Services: what runs between start and stop, started in order and stopped in reverse order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from otel_gpu.errors import Unavailable

log = logging.getLogger(__name__)


class Service(Protocol):
    """Runs in the background between ``start`` and ``stop``. Its constructor may already take an address or a file."""

    def start(self) -> None:
        """Start. RuntimeError if the system has no thread left for it."""

    def stop(self) -> None:
        """Stop within a limited time and release everything, also if it was never started."""


class OnStop:
    """A service that runs nothing and releases something when it stops."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Release it."""
        self._release()


class Services:
    """Several services as one. A service may rely on those before it from its start to its stop."""

    def __init__(self, *services: Service) -> None:
        self._services = services
        self._is_stopped = False

    def start(self) -> None:
        """Start all in order. If one fails, all are stopped; Unavailable if there is no thread left for it."""
        try:
            for service in self._services:
                service.start()
        except RuntimeError as error:
            self.stop()
            raise Unavailable(
                f"{error}: this user or container has as many as it may; raise ulimit -u (LimitNPROC=) or pids.max"
            ) from None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all in reverse order, once. A failure is logged, and the other services are stopped all the same."""
        if self._is_stopped:
            return
        self._is_stopped = True
        for service in reversed(self._services):
            try:
                service.stop()
            except Exception as error:
                log.error(  # noqa: TRY400 - the traceback only at debug level
                    "%s failed to stop: %s: %s",
                    type(service).__name__,
                    type(error).__name__,
                    error,
                    exc_info=log.isEnabledFor(logging.DEBUG),
                )
