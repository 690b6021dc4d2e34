"""From settings and what is on this host to the sources of names. Clients are loaded only for who is asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.environment import SERVICE_ACCOUNT, SERVICE_ACCOUNT_FIX, Candidate, Kind, Socket, candidates, read_facts
from otel_gpu.model import WorkloadKind, WorkloadRef
from otel_gpu.settings_names import Environment
from otel_gpu.sources.absent import AbsentSource
from otel_gpu.sources.base import NameSource, PodContainer
from otel_gpu.sources.late import DiscoveredSources, SourceDiscovery
from otel_gpu.values import Daemon

if TYPE_CHECKING:
    from otel_gpu.sources.docker.client import DockerTls

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
"""How long one answer may take. Nobody waits for it but the thread that asks."""

MOST_SOURCES: Final = 32
"""So many are asked at all, those included that have gone since: each takes a thread."""

_PEM: Final = ("ca", "cert", "key")


class NameSources:
    """Opens sources of names for this host, as the settings say."""

    def __init__(self, config: Config, clock: Clock, environment: Mapping[str, str], root: Path = Path("/")) -> None:
        self._config = config
        self._clock = clock
        self._environment = environment
        self._root = root
        self._opened: set[str] = set()
        self._expected_from: Callable[[], Collection[PodContainer]] = tuple

    def candidates(self, kinds: Collection[WorkloadKind] = ()) -> tuple[Candidate, ...]:
        """Everybody who could be asked, as things are now and with workloads of these kinds on GPUs."""
        facts = read_facts(self._config, self._environment, self._root)
        if facts.slurm is None and WorkloadKind.SLURM_JOB in kinds:
            # From within a container, a job's cgroup may be all that can be seen of Slurm.
            facts = replace(facts, slurm="its jobs are on GPUs")
        return candidates(self._config, facts)

    def open_all(self) -> tuple[tuple[NameSource, ...], SourceDiscovery | None]:
        """The sources to read; and discovery of others, in auto or where one of them could not be opened."""
        found = self.open_new()
        if self._config.environment is not Environment.AUTO and not found.failed:
            return found.sources, None
        return found.sources, SourceDiscovery(self.open_new, self._clock)

    def open_new(self, kinds: Collection[WorkloadKind] = ()) -> DiscoveredSources:
        """Whoever is to be asked and was not opened before, with workloads of these kinds on GPUs."""
        opened: list[NameSource] = []
        failed: list[str] = []
        for candidate in self.candidates(kinds):
            if not candidate.used or candidate.name in self._opened:
                continue
            if len(self._opened) >= MOST_SOURCES:
                failed.append(f"{candidate.name} is not asked: {MOST_SOURCES} are already, until the next start")
                continue
            try:
                opened.append(self.open(candidate))
            except Exception as error:  # one that cannot be had must cost its names, not the others'
                log.debug("%s cannot be opened", candidate.name, exc_info=True)
                failed.append(f"{candidate.name} cannot be asked: {str(error) or type(error).__name__}")
            else:
                self._opened.add(candidate.name)
        return DiscoveredSources(tuple(opened), tuple(failed))

    def open(self, candidate: Candidate) -> NameSource:
        """The source of one of them. Nothing is asked before it is read."""
        match candidate:
            case Candidate(kind=Kind.DOCKER | Kind.PODMAN, daemon=Daemon() as daemon):
                return self._engine(candidate, daemon)
            case Candidate(kind=Kind.CRI, socket=Socket(path=path)):
                return self._cri(candidate, path)
            case Candidate(kind=Kind.POD_RESOURCES, socket=Socket(path=path)):
                return self._pod_resources(candidate, path)
            case Candidate(kind=Kind.KUBERNETES):
                return self._kubernetes(candidate)
            case _:
                return self._slurm(candidate)

    def _slurm(self, candidate: Candidate) -> NameSource:
        from otel_gpu.sources.slurm import SlurmSource  # noqa: PLC0415

        cgroup_root = self._root / "sys/fs/cgroup"
        return SlurmSource(self._config.proc_root, self._clock, candidate.name, cgroup_root=cgroup_root)

    def _engine(self, candidate: Candidate, daemon: Daemon) -> NameSource:
        from otel_gpu.sources.docker.source import DockerSource  # noqa: PLC0415

        return DockerSource(
            candidate.name,
            daemon.url,
            labels=self._config.container_labels,
            tls=self._tls(daemon) if candidate.kind is Kind.DOCKER else None,
            timeout_s=TIMEOUT_S,
            runtime=candidate.kind.value,
            clock=self._clock,
        )

    def _tls(self, daemon: Daemon) -> DockerTls | None:
        """TLS as Docker's command line does it: to https://, and to tcp:// where it was asked for."""
        from otel_gpu.sources.docker.client import DockerTls  # noqa: PLC0415

        if not daemon.url.startswith("https://") and not (
            self._config.docker_tls_verify and daemon.url.startswith("tcp://")
        ):
            return None
        given = self._config.docker_cert_path
        directory = given or self._root / self._environment.get("HOME", "/").lstrip("/") / ".docker"
        # A directory that somebody named must have what he meant; in the usual one, what is there counts.
        ca, cert, key = (
            path if given or path.is_file() else None for path in (directory / f"{name}.pem" for name in _PEM)
        )
        return DockerTls(ca=ca, cert=cert, key=key, verify=True)

    def _cri(self, candidate: Candidate, socket: Path) -> NameSource:
        from otel_gpu.sources.kubelet.cri import CriSource  # noqa: PLC0415

        return CriSource(
            str(socket),
            labels=self._config.container_labels,
            expected=self._expected,
            timeout_s=TIMEOUT_S,
            clock=self._clock,
            name=candidate.name,
        )

    def _pod_resources(self, candidate: Candidate, socket: Path) -> NameSource:
        from otel_gpu.sources.kubelet.pod_resources import PodResourcesSource  # noqa: PLC0415

        source = PodResourcesSource(str(socket), timeout_s=TIMEOUT_S, clock=self._clock, name=candidate.name)
        self._expected_from = source.given
        return source

    def _expected(self) -> Collection[PodContainer]:
        """Containers that the kubelet has given a GPU: the runtime will have them soon."""
        return self._expected_from()

    def _kubernetes(self, candidate: Candidate) -> NameSource:
        from otel_gpu.sources.kubernetes.api import in_cluster  # noqa: PLC0415
        from otel_gpu.sources.kubernetes.source import KubernetesSource  # noqa: PLC0415

        server = in_cluster(self._environment, self._root / SERVICE_ACCOUNT)
        if candidate.lacks is not None or server is None:
            lacks = candidate.lacks or "there is no service account any more"
            return AbsentSource(candidate.name, f"{lacks}; {candidate.fix or SERVICE_ACCOUNT_FIX}")
        return KubernetesSource(
            server,
            node_name=self._config.node_name,
            labels=self._config.pod_labels,
            clock=self._clock,
            timeout_s=TIMEOUT_S,
            name=candidate.name,
        )


def begin(
    sources: Iterable[NameSource], workloads: Mapping[WorkloadRef, Collection[int]], clock: Clock, timeout_s: float
) -> list[bool]:
    """Let all of them begin, and wait for what they find out first: whether each did within this, for all together."""
    begun = list(sources)
    for source in begun:
        source.read(workloads)
    deadline_ns = clock.monotonic_ns() + round(timeout_s * 1e9)
    return [source.wait(max(0.0, (deadline_ns - clock.monotonic_ns()) / 1e9)) for source in begun]
