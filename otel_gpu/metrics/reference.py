"""The catalogue for people: ``docs/metrics.md`` is what this gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from otel_gpu.metrics.catalogue import BY_NAME, METRICS, Attribute, Metric
from otel_gpu.metrics.identity import IDENTITY_KEYS
from otel_gpu.metrics.names import label_name, prometheus_name

COMMAND: Final = "otel-gpu metrics --format markdown"

_GROUPS: Final = (
    (
        "hw.",
        "GPUs, as OpenTelemetry names them",
        "Physical GPUs, by OpenTelemetry's conventions for hardware. On the host's Resource.",
    ),
    ("gpu.device.", "GPUs, divided", "Where a GPU's memory and energy go. On the host's Resource."),
    (
        "gpu.workload.",
        "Workloads",
        "A container, a job, a unit, or the host's own processes, on one GPU. On the workload's own Resource.",
    ),
    (
        "gpu.process.",
        "Processes",
        "A process on one GPU. On its workload's Resource. This level can be switched off.",
    ),
    ("otel_gpu.", "The agent", "How the agent itself does. On the host's Resource."),
)

_RESOURCE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gpu.workload.kind": "`container`, `slurm_job`, `systemd_unit`, `lxc` or `host`; always there",
        "gpu.workload.id": "container id, Slurm job id, unit or LXC name; "
        "`host`, `unidentified` (the driver names them, `/proc` never showed them), `overflow`; always there",
        "gpu.workload.name": "the best name known, else the id; always there",
        "gpu.workload.outer.id": "inside of another container: the outermost one's id or name. Who is inside of one "
        "is never the same workload as one outside with the same id",
        "container.id": "id of the container; inside of another one only where somebody knows it by that",
        "container.name": "its name",
        "container.image.name": "its image, as its runtime names it",
        "container.runtime.name": "its runtime",
        "k8s.pod.uid": "uid of its pod",
        "k8s.pod.name": "name of its pod",
        "k8s.namespace.name": "namespace of its pod",
        "k8s.container.name": "its name in the pod",
        "slurm.job.id": "id of the Slurm job",
        "systemd.unit": "name of the unit",
    }
)


_OPENING: Final = f"""# Metrics

<!-- Made by `{COMMAND}`: change otel_gpu/metrics and run it again. -->

What is not known has no point: no metric is ever 0, -1 or NaN for want of a figure.
A gauge speaks of the last window between two samples. A counter never falls, and starts at 0.
*development* marks a name of OpenTelemetry's conventions that may still change there, *alpha* one of ours.
*scope* is with which `--scope` it is told: what speaks of whole GPUs is not told by an agent of one pod."""

_OF_RESOURCES: Final = """
## Resources

In OTLP each workload has a Resource of its own, with what is known of these. In Prometheus they are labels on every
series of workloads and processes, empty where nothing is known. Labels of containers and pods that were chosen
(`container.label.…`, `k8s.pod.label.…`) and what a Slurm job says of itself (`slurm.job.…`) are added to them:
[names.md](names.md).
"""

_OF_HOSTS: Final = """
Every Resource has `host.name`, `host.id` and, where it is known, `k8s.node.name`. The host's own Resource, on which
GPUs and the agent are, has `service.name`, `service.version` and `service.instance.id` as well.
Exported identity does not change: a workload that is renamed ends, and its successor starts at 0."""

_OF_SUMS: Final = """
## Sums that hold

In every cycle, to the byte and to the millijoule:
"""

_RULES: Final = """
What workloads have, counts those too that are held back while their names are looked up, for two cycles at most.
A workload's energy is the sum of its processes', those that have ended and been forgotten included.

## Rules

* MIG: `hw.*` is of physical GPUs only. On `gpu.*` an instance has its own points, with `gpu.mig.uuid` and
  `gpu.mig.profile`; what belongs to no instance has points where both are empty. Compute instances that share the
  memory of one GPU instance have no memory states of their own: theirs are with the rest of the GPU.
* Access is 1 for who was given a GPU, has one open, or could open any (a privileged container); the latter has no
  other points until it does. Allocation is told of what was given: 1 for a GPU, 1/replicas where it is time-sliced, its
  part of the SMs for a MIG instance. What several were given whole they have in equal parts, so that parts sum to GPUs.
* Start of a counter: when the workload or process started, or when the agent's books began, whichever is later.
  ECC errors are counted over the board's life, and have no start.
* Every method and state of a counter is there from the first export of what it belongs to, at 0 where it is unused,
  so that none of them appears later with a value that `rate` and `increase` take for its start. A newcomer itself is
  first exported at what it used since it came. OTLP carries the start with it, so nothing is lost there. A Prometheus
  that scrapes sees no start, and `increase` cannot see that first value: at most what the newcomer used in one scrape
  interval, and in the two cycles that its names may take.
* What has ended exports memory, utilisation, access and active as 0, and its counters, until the retention is over;
  then all of it vanishes.
* Overflow: beyond the caps on processes and workloads newcomers share one entry for life, so that sums stay exact.
  Only the points of that entry have `otel.metric.overflow`, which is true, as OpenTelemetry's SDKs have it. In
  Prometheus that is the label `otel_metric_overflow="true"`, and no label on all others."""

_TYPES: Final[Mapping[type, str]] = MappingProxyType({str: "string", int: "int", bool: "boolean"})


def markdown() -> str:
    """The whole reference."""
    lines = [_OPENING, *_tables(), *_attributes(), _OF_RESOURCES, *_resources(), _OF_HOSTS, _OF_SUMS, *_sums(), _RULES]
    return "\n".join(lines) + "\n"


def attributes_text(attributes: Iterable[Attribute]) -> str:
    """Keys with the values they can have, in one line."""
    return ", ".join(
        f"{attribute.key} ({', '.join(attribute.values)})" if attribute.values else attribute.key
        for attribute in attributes
    )


def _tables() -> Iterator[str]:
    for prefix, title, about in _GROUPS:
        metrics = [metric for metric in METRICS if metric.name.startswith(prefix)]
        common = [each for each in metrics[0].attributes if all(each in metric.attributes for metric in metrics)]
        yield from ("", f"## {title}", "", about)
        if common:
            yield f"Every point has {_keys(each for each in common if not each.optional)}."
        yield ""
        yield from _table(
            ("metric", "in Prometheus", "kind", "unit", "attributes of its own", "what it is", "scope", "stability"),
            [_cells(metric, common) for metric in metrics],
        )


def _cells(metric: Metric, common: Sequence[Attribute]) -> tuple[str, ...]:
    own = [attribute for attribute in metric.attributes if attribute not in common]
    return (
        f"`{metric.name}`",
        f"`{prometheus_name(metric)}`",
        metric.kind.value,
        f"`{metric.unit}`",
        _keys(own),
        metric.description,
        "node, pod" if metric.of_pod else "node",
        metric.stability.value,
    )


def _attributes() -> Iterator[str]:
    found: dict[str, list[Attribute]] = {}
    for attribute in dict.fromkeys(attribute for metric in METRICS for attribute in metric.attributes):
        found.setdefault(attribute.key, []).append(attribute)
    yield from ("", "## Attributes", "")
    rows = []
    for key, same in found.items():
        values = dict.fromkeys(value for attribute in same for value in attribute.values)
        said = ", ".join(f"`{value}`" for value in values)
        rows.append((f"`{key}`", f"`{label_name(key)}`", _TYPES[same[0].type], said, same[0].description))
    yield from _table(("attribute", "in Prometheus", "type", "values", "what it is"), rows)


def _resources() -> Iterator[str]:
    yield from _table(
        ("attribute", "in Prometheus", "what it is"),
        [(f"`{key}`", f"`{label_name(key)}`", _RESOURCE[key]) for key in IDENTITY_KEYS],
    )


def _sums() -> Iterator[str]:
    memory, limit = _prometheus("gpu.device.memory.usage"), _prometheus("hw.gpu.memory.limit")
    energy, total = _prometheus("gpu.device.energy"), _prometheus("hw.energy")
    held, given = _prometheus("gpu.workload.memory.usage"), _prometheus("gpu.workload.energy")
    overcount, status = _prometheus("gpu.device.memory.overcount"), _prometheus("hw.status")
    yield from _table(
        ("this", "equals"),
        [
            (f"`sum by (hw_id) ({memory})`", f"`sum by (hw_id) ({limit})`"),
            (f"`sum by (hw_id) ({energy})`", f"`sum by (hw_id) ({total})`"),
            (
                f'without MIG, `sum by (hw_id) ({held}{{gpu_attribution_method="measured"}})`',
                f'`sum by (hw_id) ({memory}{{gpu_memory_state="measured"}})` + `sum by (hw_id) ({overcount})`',
            ),
            (
                f'without MIG, `sum by (hw_id) ({held}{{gpu_attribution_method="inferred"}})`',
                f'`sum by (hw_id) ({memory}{{gpu_memory_state="inferred"}})`',
            ),
            (f"all that `{given}` of the GPU ever rose by", f'`{energy}{{gpu_energy_state="attributed"}}`'),
            (f"`sum by (hw_id) ({status})`", "1"),
        ],
    )


def _prometheus(name: str) -> str:
    return prometheus_name(BY_NAME[name])


def _keys(attributes: Iterable[Attribute]) -> str:
    return ", ".join(f"`{attribute.key}`" for attribute in attributes)


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heading)} |"
    yield f"|{'---|' * len(heading)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
