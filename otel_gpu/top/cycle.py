"""One cycle as it is shown: the agent's document and what it tells beside it, put together as the page does.

Both come from an agent (``/api/events``) or are made here of this host's answer, so that there is one way to show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from otel_gpu.errors import Unavailable
from otel_gpu.export.table_figures import power_w
from otel_gpu.model import MemorySplit, MethodEnergy
from otel_gpu.top.holdings import Held, Holding, holdings_of, workload_key
from otel_gpu.top.hour import Hour
from otel_gpu.top.places import Place, in_words, place_of
from otel_gpu.top.plain import Plain, number, whole_number

_DECIDES: Final = ("busy", "unknown", "idle", "allocated")
"""Somebody on several GPUs is busy if he is anywhere, idle only if nowhere anything else may be."""

_END: Final = 6
"""Characters of a pod's name: what is drawn by lot for it has five."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a workload or process does: SM ratio, energy of the window and so far, and its state.

    ``idle_for_s`` is how long it has been idle now, where it is. ``idle_s`` is that of ``idle_places`` places, summed.
    ``ended``: it is no longer there.
    """

    sm_ratio: float | None
    lately: MethodEnergy
    power_w: float | None
    so_far: MethodEnergy
    state: str | None
    idle_for_s: float | None
    idle_s: float | None
    ended: bool
    idle_places: int = 1


@dataclass(frozen=True, slots=True)
class Process:
    """One process on one GPU."""

    key: str
    pid: int
    name: str | None
    place: str
    memory_bytes: int | None
    use: Use


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload on all GPUs that it is on. ``places`` are these; ``words`` is what a filter looks for, but its id.

    ``gpus`` are the indices of GPUs, as far as they are known: an instance is on its GPU. ``place_order`` sorts by
    places. ``apart`` is what tells it from others of its title, if there are any.
    """

    key: str
    title: str
    kind: str
    id: str
    namespace: str | None
    pod: str | None
    image: str | None
    places: str
    measured_bytes: int | None
    inferred_bytes: int | None
    confidence: float | None
    cost: float | None
    use: Use
    processes: tuple[Process, ...]
    gpus: frozenset[int]
    words: str = field(repr=False)
    place_order: tuple[Place, ...] = ()
    apart: str | None = None

    @property
    def memory_bytes(self) -> int | None:
        """Measured and inferred together."""
        return _sum_whole([self.measured_bytes, self.inferred_bytes])


@dataclass(frozen=True, slots=True)
class Instance:
    """One MIG instance."""

    profile: str
    memory: MemorySplit | None
    holdings: tuple[Holding, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    index: int
    name: str
    memory: MemorySplit | None
    instances: tuple[Instance, ...]
    utilization: float | None
    power_w: float | None
    temperature_c: float | None
    health: str
    reason: str | None
    holdings: tuple[Holding, ...] = ()
    """Who holds its memory, most first."""
    last_hour: tuple[float | None, ...] = ()
    """Its utilisation by slots of the page's plots, the newest last."""


@dataclass(frozen=True, slots=True)
class Source:
    """Who is asked, how that went, and why so."""

    name: str
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Cycle:
    """All of a cycle. ``at_s`` is Unix time; ``currency`` is ``None`` where no prices are set."""

    at_s: float
    interval_s: float
    version: str
    host: str
    simulated: str | None
    currency: str | None
    driver: str | None
    pod: str | None
    all_told: bool
    gpus: tuple[Gpu, ...]
    workloads: tuple[Workload, ...]
    sources: tuple[Source, ...]

    @property
    def troubles(self) -> tuple[Source, ...]:
        """The sources that are not well."""
        return tuple(source for source in self.sources if source.state != "ok")


def combine(document: object, beside: object, hour: Hour | None = None) -> Cycle:
    """The cycle of an agent's two objects. Unavailable if they are not as this version knows them.

    ``hour`` is what was heard of the last hour before, and hears of it.
    """
    try:
        return _cycle(Plain(document), Plain(beside), hour or Hour())
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Unavailable(f"what it tells is not understood ({type(error).__name__}: {error})") from None


def _cycle(document: Plain, beside: Plain, hour: Hour) -> Cycle:
    window_s = beside.number("window_s")
    hour.add(beside.inner("history"))
    holdings = holdings_of(document, beside)
    processes: dict[str, list[Process]] = {}
    for process, more in zip(document.each("processes"), beside.each("processes"), strict=True):
        key = workload_key(more.text("kind"), process.text("workload"), more)
        processes.setdefault(key, []).append(_process(process, more, window_s))
    return Cycle(
        at_s=beside.known("at"),
        interval_s=beside.known("interval_s"),
        version=beside.text("version"),
        host=beside.text("host"),
        simulated=beside.optional("simulated"),
        currency=beside.optional("currency"),
        driver=beside.optional("driver"),
        pod=beside.optional("pod"),
        all_told=beside.flag("all_told"),
        gpus=tuple(
            _gpu(gpu, more, window_s, holdings, hour)
            for gpu, more in zip(document.each("gpus"), beside.each("gpus"), strict=True)
        ),
        workloads=_told_apart(
            [
                _workload(workload, more, window_s, processes)
                for workload, more in zip(document.each("workloads"), beside.each("workloads"), strict=True)
            ]
        ),
        sources=tuple(
            Source(source.text("name"), str(state), source.optional("reason"))
            for source, state in zip(document.each("sources"), beside.items("sources"), strict=True)
        ),
    )


# ---------------------------------------------------------------------------- GPUs


def _gpu(gpu: Plain, beside: Plain, window_s: float | None, holdings: Held, hour: Hour) -> Gpu:
    uuid = gpu.text("uuid")
    drawn_mj = gpu.inner("energy").whole("delta_mj")
    instances = gpu.each("mig") if gpu.get("mig") is not None else []
    return Gpu(
        index=whole_number(gpu.known("index")),
        name=gpu.text("name"),
        memory=_memory(gpu.inner("memory")),
        instances=tuple(
            Instance(
                each.optional("profile") or "MIG",
                _memory(each.inner("memory")),
                tuple(holdings.get((uuid, each.text("uuid")), ())),
            )
            for each in instances
        ),
        utilization=gpu.number("utilization"),
        power_w=drawn_mj / 1000 / window_s if drawn_mj is not None and window_s else gpu.number("power_w"),
        temperature_c=gpu.number("temperature_c"),
        health=beside.text("health"),
        reason=beside.optional("reason"),
        holdings=tuple(holdings.get((uuid, None), ())),
        last_hour=hour.of(uuid),
    )


def _memory(memory: Plain) -> MemorySplit | None:
    if memory.get("limit") is None:
        return None
    return MemorySplit(
        limit_bytes=whole_number(memory.known("limit")),
        reserved_bytes=memory.whole("reserved"),
        measured_bytes=whole_number(memory.known("measured")),
        overcount_bytes=whole_number(memory.known("overcount")),
        inferred_bytes=whole_number(memory.known("inferred")),
        unattributed_bytes=whole_number(memory.known("unattributed")),
        free_bytes=whole_number(memory.known("free")),
    )


# ---------------------------------------------------------------------------- workloads


def _workload(workload: Plain, beside: Plain, window_s: float | None, processes: dict[str, list[Process]]) -> Workload:
    parts = list(zip(workload.each("gpus"), beside.each("gpus"), strict=True))
    key = workload_key(workload.text("kind"), workload.text("id"), beside)
    own = tuple(sorted(processes.get(key, ()), key=lambda process: (-(process.memory_bytes or -1), process.pid)))
    held = [(part.inner("memory"), part.inner("memory").whole("inferred")) for part, _ in parts]
    sure = [memory.number("confidence") for memory, inferred in held if inferred]
    use = _use_of_all(parts, window_s)
    title = _title(workload)
    places = sorted(place_of(more) for _, more in parts)
    names = {name: workload.optional(name) for name in ("namespace", "pod", "container", "image")}
    words = [*names.values(), workload.text("kind"), "ended" if use.ended else use.state, "gpu"]
    words += [] if _is_hash(workload) else [title]
    words += [more.optional("profile") for _, more in parts]
    words += [process.name for process in own]
    return Workload(
        key=key,
        title=title,
        kind=workload.text("kind"),
        id=workload.text("id"),
        namespace=names["namespace"],
        pod=names["pod"],
        image=names["image"],
        places=in_words(places),
        measured_bytes=_sum_whole([memory.whole("measured") for memory, _ in held]),
        inferred_bytes=_sum_whole([inferred for _, inferred in held]),
        confidence=min((each for each in sure if each is not None), default=None) if None not in sure else None,
        cost=_sum([more.number("cost") for _, more in parts]),
        use=use,
        processes=own,
        gpus=frozenset(index for _, more in parts if (index := more.whole("index")) is not None),
        words="\n".join(word for word in words if word).lower(),
        place_order=tuple(places),
    )


def _told_apart(workloads: Sequence[Workload]) -> tuple[Workload, ...]:
    """The same ones, of whom those of one title have what tells them apart: the end of a pod's name, or what is left.

    A deployment's pods, a job's and a set's differ in their ends; where there is little room, the rest says nothing.
    """
    by_title: dict[str, list[Workload]] = {}
    for workload in workloads:
        by_title.setdefault(workload.title, []).append(workload)
    apart = {
        workload.key: word
        for namesakes in by_title.values()
        if len(namesakes) > 1
        for workload, word in zip(namesakes, _differing(namesakes), strict=True)
    }
    return tuple(
        replace(workload, apart=apart[workload.key]) if workload.key in apart else workload for workload in workloads
    )


def _differing(namesakes: Sequence[Workload]) -> list[str]:
    ends = [_end(workload.pod) for workload in namesakes]
    spaces = [workload.namespace for workload in namesakes]
    for words in (ends, spaces):
        known = [word for word in words if word is not None]
        if len(set(known)) == len(namesakes):
            return known
    return [workload.id[:12] for workload in namesakes]


def _end(pod: str | None) -> str | None:
    return pod if pod is None or len(pod) <= _END else f"…{pod[-_END:]}"


def _use_of_all(parts: Sequence[tuple[Plain, Plain]], window_s: float | None) -> Use:
    lately = _energy([part.inner("energy_mj") for part, _ in parts])
    here = [(part.optional("state"), part.number("idle_seconds")) for part, more in parts if more.flag("active")]
    state = next((each for each in _DECIDES if each in {state for state, _ in here}), None)
    spans = [idle_s for each, idle_s in here if each == "idle"]
    known = [idle_s for idle_s in spans if idle_s is not None]
    so_far_s = [idle_s for _, more in parts if (idle_s := more.number("idle_s")) is not None]
    return Use(
        sm_ratio=_sum([part.number("utilization") for part, _ in parts]),
        lately=lately,
        power_w=power_w(lately, window_s),
        so_far=_energy([more.inner("energy_mj") for _, more in parts if more.get("energy_mj") is not None]),
        state=state,
        idle_for_s=min(known) if state == "idle" and known and len(known) == len(spans) else None,
        idle_s=_sum(so_far_s),
        ended=not here,
        idle_places=len(so_far_s),
    )


def _process(process: Plain, beside: Plain, window_s: float | None) -> Process:
    lately = _energy([beside.inner("lately_mj")])
    pid = whole_number(process.known("pid"))
    state = process.optional("state")
    return Process(
        key=f"{pid} {process.number('start_time')} {process.text('gpu')} {beside.optional('mig')}",
        pid=pid,
        name=process.optional("name"),
        place=str(place_of(beside)),
        memory_bytes=process.whole("memory"),
        use=Use(
            sm_ratio=process.number("utilization"),
            lately=lately,
            power_w=power_w(lately, window_s),
            so_far=_energy([beside.inner("energy_mj")] if beside.get("energy_mj") is not None else []),
            state=state,
            idle_for_s=process.number("idle_seconds") if state == "idle" else None,
            idle_s=beside.number("idle_s"),
            ended=not beside.flag("active"),
        ),
    )


def _title(workload: Plain) -> str:
    """Its name; of an id that nobody has a name for, what ``docker ps`` shows."""
    name = workload.text("name")
    return name[:12] if _is_hash(workload) else name


def _is_hash(workload: Plain) -> bool:
    return workload.text("name") == workload.text("id") and len(workload.text("id")) == 64


def _energy(energies: Sequence[Plain]) -> MethodEnergy:
    measured, estimated, inferred = (
        _sum_whole([energy.whole(method) for energy in energies]) for method in ("measured", "estimated", "inferred")
    )
    return MethodEnergy(measured, estimated, inferred)


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum of what is known; ``None`` where nothing is."""
    known = [value for value in values if value is not None]
    return sum(map(number, known)) if known else None


def _sum_whole(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
