"""Sources of names that were not there when the agent started: a runtime that is installed or comes up later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import NO_PODS, NOBODY, Claim, Known, NameRead, NameSource, PodContainer
from otel_gpu.sources.beside import Beside, Board

LOOK_S: Final = 60.0
"""How often it looks whether somebody new is there. That takes a few calls of stat(2)."""

_WORST_FIRST: Final = (SourceState.UNAVAILABLE, SourceState.DEGRADED, SourceState.OK)


class LateSources:
    """Whoever comes late, as one source: the list of sources is made when the agent starts.

    ``find`` opens those that are new, and is told which kinds of workloads were on GPUs so far. It is called on a
    thread of its own, now and then, and when there is a new kind.
    """

    def __init__(
        self,
        find: Callable[[Collection[WorkloadKind]], Sequence[NameSource]],
        *,
        look_s: float = LOOK_S,
        name: str = "environment",
    ) -> None:
        self._name = name
        self._find = find
        self._look_s = look_s
        self._sources: tuple[NameSource, ...] = ()
        self._kinds: frozenset[WorkloadKind] = frozenset()
        self._board = Board()
        self._beside = Beside(name, self._board, self._follow)
        self._known: Mapping[str, Known] = NOBODY
        self._pods: Mapping[PodContainer, tuple[Claim, ...]] = NO_PODS
        self._reads: tuple[NameRead, ...] = ()

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""
        return self._name

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """What all of them know together; of two who know one id, the first is believed."""
        self._beside.start()
        kinds = self._kinds.union(ref.kind for ref in workloads)
        if kinds != self._kinds:
            self._kinds = kinds
            self._beside.wake()
        own = self._board.read()
        sources = self._sources
        if not sources:
            return own
        reads = tuple(source.read(workloads) for source in sources)
        self._put_together(reads)
        state = next(state for state in _WORST_FIRST if any(read.state is state for read in (own, *reads)))
        reasons = [own.reason] if own.reason else []
        reasons += [f"{source.name}: {read.reason}" for source, read in zip(sources, reads, strict=True) if read.reason]
        return NameRead(
            self._known,
            self._pods,
            frozenset().union(*(read.pending for read in reads)),
            state,
            "; ".join(reasons) or None,
            own.errors + sum(read.errors for read in reads),
        )

    def wait(self, timeout_s: float) -> bool:  # noqa: ARG002
        """Whoever is late is not waited for."""
        return True

    def close(self) -> None:
        """Look no more, and ask nobody."""
        self._beside.stop()
        for source in self._sources:
            source.close()

    def _put_together(self, reads: tuple[NameRead, ...]) -> None:
        """New mappings only where one of them is new: the same objects mean that nothing has changed."""
        if len(reads) == len(self._reads) and all(
            now.known is before.known and now.pods is before.pods
            for now, before in zip(reads, self._reads, strict=True)
        ):
            return
        self._reads = reads
        known: dict[str, Known] = {}
        pods: dict[PodContainer, tuple[Claim, ...]] = {}
        for read in reversed(reads):
            known.update(read.known)
            pods.update(read.pods)
        self._known, self._pods = known, pods

    def _follow(self, beside: Beside) -> None:
        beside.well()
        while not beside.stopping:
            beside.sleep(self._look_s)
            if not beside.stopping:
                self._sources = (*self._sources, *self._find(self._kinds))
                self._board.well()
