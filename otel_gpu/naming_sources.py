"""From settings and what is on this host to the sources of names. Clients are loaded only for who is asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_gpu.clock import Clock
from otel_gpu.config import Config
from otel_gpu.environment import Candidate, Kind, Socket, candidates, read_facts
from otel_gpu.model import WorkloadKind, WorkloadRef
from otel_gpu.settings_names import Environment
from otel_gpu.sources.absent import AbsentSource
from otel_gpu.sources.base import NameSource, PodContainer
from otel_gpu.sources.late import LateSources
from otel_gpu.sources.slurm import SlurmSource
from otel_gpu.values import Daemon

if TYPE_CHECKING:
    from otel_gpu.sources.docker.client import DockerTls

TIMEOUT_S: Final = 5.0
"""How long one answer may take. Nobody waits for it but the thread that asks."""

NODE_NAME_FIX: Final = (
    "set --node-name, or in the manifest: env: [{name: K8S_NODE_NAME, valueFrom: {fieldRef: {fieldPath: "
    "spec.nodeName}}}]"
)
SERVICE_ACCOUNT_FIX: Final = (
    "the API is asked as the service account of the agent's pod: run it in the cluster, with "
    "automountServiceAccountToken: true"
)

_PEM: Final = ("ca", "cert", "key")
_SERVICE_ACCOUNT: Final = "var/run/secrets/kubernetes.io/serviceaccount"


class NameSources:
    """Opens sources of names for this host, as the settings say."""

    def __init__(self, config: Config, clock: Clock, environment: Mapping[str, str], root: Path = Path("/")) -> None:
        self._config = config
        self._clock = clock
        self._environment = environment
        self._root = root
        self._expected_from: Callable[[], Collection[PodContainer]] = tuple

    def candidates(self, kinds: Collection[WorkloadKind] = ()) -> tuple[Candidate, ...]:
        """Everybody who could be asked, as things are now and with workloads of these kinds on GPUs."""
        facts = read_facts(self._config, self._environment, self._root)
        if facts.slurm is None and WorkloadKind.SLURM_JOB in kinds:
            # From within a container, a job's cgroup may be all that can be seen of Slurm.
            facts = replace(facts, slurm="its jobs are on GPUs")
        return candidates(self._config, facts)

    def open_all(self, *, lookout: bool = True) -> tuple[NameSource, ...]:
        """Whoever is to be asked; in auto with one more, who looks out for others."""
        used = [candidate for candidate in self.candidates() if candidate.used]
        sources = tuple(self.open(candidate) for candidate in used)
        if self._config.environment is not Environment.AUTO or not lookout:
            return sources
        names = {candidate.name for candidate in used}

        def find(kinds: Collection[WorkloadKind]) -> Sequence[NameSource]:
            new = [each for each in self.candidates(kinds) if each.used and each.name not in names]
            names.update(each.name for each in new)
            return [self.open(each) for each in new]

        return (*sources, LateSources(find))

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
                return SlurmSource(self._config.proc_root, self._clock, candidate.name)

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

        server = in_cluster(self._environment, self._root / _SERVICE_ACCOUNT)
        if server is None:
            return AbsentSource(candidate.name, f"there is no service account here; {SERVICE_ACCOUNT_FIX}")
        if not self._config.node_name:
            return AbsentSource(candidate.name, f"which node this is is not known; {NODE_NAME_FIX}")
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
