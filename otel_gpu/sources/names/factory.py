"""Open the name sources of this host. A client library is imported only when a source uses it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_gpu.clock import Clock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import NameRead, NameSource, PodContainer
from otel_gpu.sources.names.candidates import (
    SERVICE_ACCOUNT,
    SERVICE_ACCOUNT_FIX,
    Kind,
    NameOptions,
    Socket,
    SourceCandidate,
    find_candidates,
    read_facts,
)
from otel_gpu.sources.names.discovery import DiscoveredSources, SourceDiscovery

if TYPE_CHECKING:
    from otel_gpu.sources.names.docker.client import DockerTls

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
"""Timeout of one answer. Only the source's own thread waits for it."""

MAX_SOURCES: Final = 32
"""Sources that are opened in the life of the agent: each takes a thread."""

CLOSE_TIMEOUT_S: Final = 1.0
"""Time limit for closing all name sources together. A thread that hangs for longer ends with the process."""

_PEM: Final = ("ca", "cert", "key")


class NameSourceFactory:
    """Opens the name sources of the host whose file system is at ``root``."""

    def __init__(
        self, options: NameOptions, clock: Clock, environment: Mapping[str, str], root: Path = Path("/")
    ) -> None:
        self._options = options
        self._clock = clock
        self._environment = environment
        self._root = root
        self._opened: set[str] = set()
        self._granted: Callable[[], frozenset[PodContainer]] = frozenset

    def candidates(self, kinds: Collection[WorkloadKind] = ()) -> tuple[SourceCandidate, ...]:
        """Every possible source at this moment, with workloads of these kinds on GPUs."""
        facts = read_facts(self._options, self._environment, self._root)
        if facts.slurm is None and WorkloadKind.SLURM_JOB in kinds:
            # From within a container, a job's cgroup may be the only trace of Slurm.
            facts = replace(facts, slurm="its jobs are on GPUs")
        return find_candidates(self._options, facts)

    def open_all(self) -> tuple[tuple[NameSource, ...], SourceDiscovery | None]:
        """The sources to read, and discovery of others in auto or if one of them could not be opened."""
        found = self.open_new()
        if self._options.environment != "auto" and not found.failed:
            return found.sources, None
        return found.sources, SourceDiscovery(self.open_new, self._clock)

    def open_new(self, kinds: Collection[WorkloadKind] = ()) -> DiscoveredSources:
        """The used sources that are not open yet, with workloads of these kinds on GPUs."""
        opened: list[NameSource] = []
        failed: list[str] = []
        for candidate in self.candidates(kinds):
            if not candidate.used or candidate.name in self._opened:
                continue
            if len(self._opened) >= MAX_SOURCES:
                failed.append(f"{candidate.name} is not used: the limit is {MAX_SOURCES} sources until the next start")
                continue
            try:
                opened.append(self.open(candidate))
            except Exception as error:  # a source that fails must not cost the others' names
                log.debug("%s cannot be opened", candidate.name, exc_info=True)
                failed.append(f"{candidate.name} cannot be opened: {str(error) or type(error).__name__}")
            else:
                self._opened.add(candidate.name)
        return DiscoveredSources(tuple(opened), tuple(failed))

    def open(self, candidate: SourceCandidate) -> NameSource:
        """Open a source. It connects when it is first read."""
        match candidate:
            case SourceCandidate(kind=Kind.DOCKER | Kind.PODMAN, url=str(url)):
                return self._engine(candidate, url)
            case SourceCandidate(kind=Kind.CRI, socket=Socket(path=path)):
                return self._cri(candidate, path)
            case SourceCandidate(kind=Kind.POD_RESOURCES, socket=Socket(path=path)):
                return self._pod_resources(candidate, path)
            case SourceCandidate(kind=Kind.KUBERNETES):
                return self._kubernetes(candidate)
            case SourceCandidate(kind=Kind.SLURM):
                return self._slurm(candidate)
            case _:
                raise ValueError(f"no way to open a source of kind {candidate.kind}")

    def _slurm(self, candidate: SourceCandidate) -> NameSource:
        from otel_gpu.sources.names.slurm import SlurmSource  # noqa: PLC0415

        cgroup_root = self._root / "sys/fs/cgroup"
        return SlurmSource(self._options.proc_root, self._clock, candidate.name, cgroup_root=cgroup_root)

    def _engine(self, candidate: SourceCandidate, url: str) -> NameSource:
        from otel_gpu.sources.names.docker.source import DockerSource  # noqa: PLC0415

        return DockerSource(
            candidate.name,
            url,
            labels=self._options.container_labels,
            tls=self._tls(url) if candidate.kind is Kind.DOCKER else None,
            timeout_s=TIMEOUT_S,
            runtime=candidate.kind.value,
            uid=candidate.uid,
            proc_root=self._options.proc_root,
            clock=self._clock,
        )

    def _tls(self, url: str) -> DockerTls | None:
        """TLS as in Docker's command line: for https://, and for tcp:// if verification is on."""
        from otel_gpu.sources.names.docker.client import DockerTls  # noqa: PLC0415

        if not url.startswith("https://") and not (self._options.docker_tls_verify and url.startswith("tcp://")):
            return None
        configured = self._options.docker_cert_path
        directory = configured or self._root / self._environment.get("HOME", "/").lstrip("/") / ".docker"
        # A configured directory must have all files. In the default one, missing files are left out.
        ca, cert, key = (
            path if configured or path.is_file() else None for path in (directory / f"{name}.pem" for name in _PEM)
        )
        return DockerTls(ca=ca, cert=cert, key=key, verify=True)

    def _cri(self, candidate: SourceCandidate, socket: Path) -> NameSource:
        from otel_gpu.sources.names.cri import CriSource  # noqa: PLC0415

        return CriSource(
            str(socket),
            labels=self._options.container_labels,
            expected=self._expected,
            timeout_s=TIMEOUT_S,
            clock=self._clock,
            name=candidate.name,
        )

    def _pod_resources(self, candidate: SourceCandidate, socket: Path) -> NameSource:
        from otel_gpu.sources.names.podresources import PodResourcesSource  # noqa: PLC0415

        source = PodResourcesSource(str(socket), timeout_s=TIMEOUT_S, clock=self._clock, name=candidate.name)
        self._granted = source.granted
        return source

    def _expected(self) -> frozenset[PodContainer]:
        """Containers to which the kubelet granted a GPU: the runtime starts them soon."""
        return self._granted()

    def _kubernetes(self, candidate: SourceCandidate) -> NameSource:
        from otel_gpu.sources.names.kubernetes.api import in_cluster  # noqa: PLC0415
        from otel_gpu.sources.names.kubernetes.source import KubernetesSource  # noqa: PLC0415

        server = in_cluster(self._environment, self._root / SERVICE_ACCOUNT)
        if candidate.lacks is not None or server is None:
            lacks = candidate.lacks or "there is no service account"
            return UnavailableSource(candidate.name, f"{lacks}; {candidate.fix or SERVICE_ACCOUNT_FIX}")
        return KubernetesSource(
            server,
            node_name=self._options.node_name,
            labels=self._options.pod_labels,
            clock=self._clock,
            timeout_s=TIMEOUT_S,
            name=candidate.name,
        )


class UnavailableSource:
    """A requested source that cannot work. It is listed with the reason instead of being left out."""

    def __init__(self, name: str, reason: str) -> None:
        self._name = name
        self._reason = reason

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""
        return self._name

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:  # noqa: ARG002
        """No names, and the reason."""
        return NameRead(state=SourceState.UNAVAILABLE, reason=self._reason)

    def wait(self, timeout_s: float) -> bool:  # noqa: ARG002
        """Return at once."""
        return True

    def close(self) -> None:
        """Do nothing."""


def start_all(
    sources: Iterable[NameSource], workloads: Mapping[WorkloadRef, Collection[int]], clock: Clock, timeout_s: float
) -> list[bool]:
    """Start all sources and wait at most ``timeout_s`` for their first answers; true for each that answered."""
    started = list(sources)
    for source in started:
        source.read(workloads)
    deadline_ns = clock.monotonic_ns() + round(timeout_s * 1e9)
    return [source.wait(max(0.0, (deadline_ns - clock.monotonic_ns()) / 1e9)) for source in started]


def close_all(sources: Iterable[NameSource]) -> None:
    """Close all sources in parallel, within ``CLOSE_TIMEOUT_S`` in total: several that hang take no longer than one."""
    closing = [threading.Thread(target=source.close, name="otel-gpu-close", daemon=True) for source in sources]
    for thread in closing:
        try:
            thread.start()
        except RuntimeError:  # the pid limit of the container counts threads
            thread.run()
    deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
    for thread in closing:
        if thread.is_alive():
            thread.join(max(0.0, deadline_s - time.monotonic()))
