"""The catalogue as documentation: ``docs/metrics.md`` is generated here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from otel_gpu.metrics.catalogue import BY_NAME, METRICS, Attribute, Metric
from otel_gpu.metrics.labels import IDENTITY_KEYS
from otel_gpu.metrics.names import label_name, prometheus_name

COMMAND: Final = "otel-gpu metrics --format markdown"

_GROUPS: Final = (
    (
        "hw.",
        "GPUs, as OpenTelemetry names them",
        "Physical GPUs, by OpenTelemetry's conventions for hardware. On the host's Resource.",
    ),
    ("gpu.device.", "GPUs, divided", "How the memory and energy of a GPU are divided. On the host's Resource."),
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
    ("otel_gpu.", "The agent", "The state and cost of the agent itself. On the host's Resource."),
)

_RESOURCE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gpu.workload.kind": "`container`, `slurm_job`, `systemd_unit`, `lxc` or `host`; always there",
        "gpu.workload.id": "container id, Slurm job id, unit or LXC name; "
        "`host`, `unidentified` (processes that the driver lists and `/proc` never showed), `overflow`; always there",
        "gpu.workload.name": "the best name known, else the id; always there",
        "gpu.workload.outer.id": "inside another container: the id or name of the outermost one. A workload inside "
        "a container is never the same as one outside with the same id",
        "container.id": "id of the container; inside another one only where a name source knows it by that id",
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

What is unknown has no point: no metric is ever 0, -1 or NaN in place of a missing value. No attribute is empty: what is
unknown, or does not apply, has no key. In PromQL an absent label equals an empty one (`gpu_mig_uuid=""`).
A gauge describes the last window between two samples. A counter never falls, and starts at 0.
*development* marks a name of OpenTelemetry's conventions that may still change there, *alpha* one of ours.
*scope* lists the values of `--scope` that export it: an agent of one pod exports no metrics of whole GPUs."""

_OF_RESOURCES: Final = """
## Resources

In OTLP each workload has a Resource of its own, with those of these attributes that are known. In Prometheus they are
labels on every series of workloads and processes. Labels of containers and pods that were chosen
(`container.label.…`, `k8s.pod.label.…`) and what a Slurm job says of itself (`slurm.job.…`) are added to them:
[names.md](names.md).
"""

_OF_HOSTS: Final = """
Every Resource has `host.name`, `host.id` and, where it is known, `k8s.node.name`. The host's own Resource, which
carries the metrics of GPUs and of the agent, has `service.name`, `service.version` and `service.instance.id` as well.
Exported identity does not change: a workload that is renamed ends, and its successor starts at 0."""

_OF_SUMS: Final = """
## Sums that hold

In every cycle, to the byte and to the millijoule:
"""

_RULES: Final = """
The sums over workloads include those that are held back while their names are resolved, for two cycles at most.
A workload's energy is the sum of its processes', including those that have ended and been forgotten.

## Rules

* MIG: `hw.*` is of physical GPUs only. On `gpu.*` an instance has its own points, with `gpu.mig.uuid` and
  `gpu.mig.profile`; the points of the rest of the GPU have neither. Compute instances that share the memory of one GPU
  instance have no memory states of their own: their memory is counted with the rest of the GPU.
* Access is 1 for a workload that was granted a GPU, has one open, or could open any (a privileged container); the last
  has no other points until it opens one. Allocation is exported for grants: 1 for a GPU, 1/replicas where it is
  time-sliced, its part of the SMs for a MIG instance. A GPU that several workloads were granted whole is divided
  equally among them, so that allocations sum to GPUs.
* Start of a counter: when the workload or process started, or when the agent's ledger began, whichever is later.
  ECC errors are counted over the life of the board, and have no start.
* Every method and state of a counter is there from the first export of its workload or process, at 0 while it is
  unused, so that none of them appears later with a value that `rate` and `increase` take for its start. A new workload
  is first exported at what it used since it started. OTLP carries the start, so nothing is lost there. Prometheus sees
  no start when it scrapes, and `increase` does not see that first value: at most the use of one scrape interval, and
  of the two cycles for which names are awaited. `--openmetrics-created` exports the start as `_created` samples.
* An ended workload or process exports memory, utilisation, access and active as 0, and its counters, until the
  retention is over; then all its series vanish.
* Overflow: beyond the caps on processes and workloads, new ones share one entry for life, so that sums stay exact.
  Only the points of that entry have `otel.metric.overflow`, which is true, as in OpenTelemetry's SDKs. In Prometheus
  that is the label `otel_metric_overflow="true"`."""

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
            optional = _keys(each for each in common if each.optional)
            applicable = f", and where they apply {optional}" if optional else ""
            yield f"Every point has {_keys(each for each in common if not each.optional)}{applicable}."
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
