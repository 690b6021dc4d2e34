"""The page in a real browser: every text and figure is that of the JSON document of the same cycle."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pytest

from otel_gpu.export.document import to_json
from otel_gpu.model import (
    GpuReport,
    GpuState,
    MethodEnergy,
    ProcessReport,
    Report,
    WorkloadGpu,
    WorkloadReport,
)
from otel_gpu.view.names import name_key, workload_names
from otel_gpu.view.text import (
    UNKNOWN,
    celsius,
    gpu_span,
    joules,
    model,
    money,
    out_of,
    percent,
    signed,
    size,
    span,
    watts,
)
from tests.real.chromium import Browser
from tests.real.page_view import CARDS, PROCESSES, TABLE, TOTALS, assert_clean, open_page
from tests.real.stepped_agent import SteppedAgent
from tests.web import ask

pytestmark = pytest.mark.real

METHODS: Final = ("measured", "estimated", "inferred")
Shown = dict[str, tuple[str, float | None]]
"""Text and value by the name of a cell."""


def total(values: Sequence[float | None]) -> float | None:
    """The sum of the known values; ``None`` if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def same(shown: str | None, reported: float | None) -> bool:
    """Whether the value of a cell is that of the report."""
    if not shown or reported is None:
        return not shown and reported is None
    return float(shown) == pytest.approx(reported, rel=1e-12)


def document_of(attribution: Report) -> dict[str, Any]:
    """The output of ``once --format json``."""
    document: dict[str, Any] = json.loads(to_json(attribution))
    return document


def energy(by_method: Sequence[dict[str, int | None]]) -> MethodEnergy:
    """Energy by method, summed over entries of the document."""
    sums = {f"{method}_mj": total([each[method] for each in by_method]) for method in by_method[0]}
    return MethodEnergy(**{method: None if value is None else int(value) for method, value in sums.items()})


def state_text(states: Sequence[tuple[str | None, float | None]]) -> str:
    """Busy if busy anywhere; idle with its duration only if idle everywhere or allocated."""
    state = next(each for each in ("busy", "unknown", "idle", "allocated") if each in [state for state, _ in states])
    idle = [idle_s for each, idle_s in states if each == "idle"]
    return f"idle {span(min(each for each in idle if each is not None))}" if state == "idle" else state


def idle_so_far(use: WorkloadGpu | ProcessReport, gpus: dict[str, GpuReport]) -> float | None:
    """Idle seconds; unknown instead of 0 without utilisation, or while the state is unknown."""
    assert use.totals is not None
    can_tell = gpus[use.gpu_uuid].has_utilization and use.state is not GpuState.UNKNOWN
    return use.totals.idle_us / 1e6 if use.totals.idle_us or can_tell else None


def row_of(workload: dict[str, Any], reported: WorkloadReport, attribution: Report) -> Shown:
    """The expected row of a workload; totals so far are in the report only."""
    parts, window_s = workload["gpus"], attribution.window_s
    assert window_s is not None
    gpus = {gpu.identity.uuid: gpu for gpu in attribution.gpus}
    places = {(gpus[part.gpu_uuid].identity.index, part.mig_profile) for part in reported.reported_gpus}
    ((index, profile),) = places  # test_page_many_gpus_real.py has workloads on several GPUs
    inferred = total([part["memory"]["inferred"] for part in parts])
    memory = total([part["memory"]["measured"] for part in parts] + [inferred])
    sm = total([part["utilization"] for part in parts])
    lately = energy([part["energy_mj"] for part in parts])
    power_w = None if lately.total_mj is None else lately.total_mj / 1000 / window_s
    totals = [part.totals for part in reported.reported_gpus if part.totals is not None]
    so_far = energy([{method: getattr(each.energy, f"{method}_mj") for method in METHODS} for each in totals])
    idle = [idle_so_far(part, gpus) for part in reported.reported_gpus]
    cost = sum(cost.amount for part in reported.reported_gpus for cost in part.costs)
    return {
        "gpu": (f"{index} {profile}" if profile else str(index), None),
        "memory": (("~ " if inferred else "") + size(memory), memory),
        "sm": (percent(sm), sm),
        "power": (signed(watts(power_w), lately), power_w),
        "energy": (signed(joules(so_far.total_mj), so_far), so_far.total_mj),
        "idle": (gpu_span(total(idle), len([each for each in idle if each is not None])), total(idle)),
        "cost": (money(cost, "EUR"), cost),
        "state": (state_text([(part["state"], part["idle_seconds"]) for part in parts]), None),
    }


def test_every_text_and_figure_of_a_workload_is_that_of_the_document_of_the_same_cycle(
    browser: Browser, demo: SteppedAgent
) -> None:
    attribution = demo.advance(5)
    tab = open_page(browser, demo)
    document = document_of(attribution)
    answer = ask(demo.address, "/api/attribution")
    assert json.loads(answer.body) == document
    assert answer.headers["ETag"] == f'"{tab.value("document.getElementById(`main`).dataset.cycle")}"'
    shown = {row["id"]: row for row in tab.value(TABLE)}
    reported = [workload for workload in attribution.workloads if workload.reported_gpus]
    names = workload_names(reported)
    assert len(shown) == len(document["workloads"]) == len(reported) > 10
    for workload, behind in zip(document["workloads"], reported, strict=True):
        row = shown[workload["id"]]
        expected = row_of(workload, behind, attribution)
        assert row["name"] == names[name_key(behind)]
        assert row["texts"] == {key: text for key, (text, _) in expected.items()}
        figures = {key: value for key, (_, value) in expected.items() if key not in ("gpu", "state")}
        assert [key for key, value in figures.items() if not same(row[key], value)] == []
    texts = {text for row in shown.values() for text in row["texts"].values()}
    assert {UNKNOWN, "busy", "unknown"} <= texts
    assert any(row["texts"]["state"].startswith("idle ") and row["texts"]["idle"] != "0 s" for row in shown.values())
    assert_clean(tab, demo.url)


def test_every_text_and_figure_of_a_process_is_that_of_the_document(browser: Browser, demo: SteppedAgent) -> None:
    attribution = demo.now()
    tab = open_page(browser, demo)
    tab.value("document.querySelectorAll('.open').forEach(button => button.click())")
    shown = {(row["workload"], row["texts"]["PID"], row["texts"]["GPU"]): row for row in tab.value(PROCESSES)}
    reported = [process for process in attribution.processes if process.is_reported]
    processes = document_of(attribution)["processes"]
    window_s = attribution.window_s
    gpus = {gpu.identity.uuid: gpu for gpu in attribution.gpus}
    assert window_s is not None
    assert len(shown) == len(processes) == len(reported) > 10
    for process, behind in zip(processes, reported, strict=True):
        place = f"{behind.gpu_index} {behind.mig_profile}" if behind.mig_profile else str(behind.gpu_index)
        row = shown[process["workload"], str(process["pid"]), place]
        power_w = None if process["energy_mj"] is None else process["energy_mj"] / 1000 / window_s
        assert behind.totals is not None
        so_far = behind.totals.energy
        assert row["texts"] == {
            "PID": str(process["pid"]),
            "Process": process["name"],
            "GPU": place,
            "Memory": size(process["memory"]),
            "SM": percent(process["utilization"]),
            "Power": signed(watts(power_w), behind.energy),
            "Energy": signed(joules(so_far.total_mj), so_far),
            "Idle": span(idle_so_far(behind, gpus)),
            "State": state_text([(process["state"], process["idle_seconds"])]),
        }
        figures = {"Memory": process["memory"], "SM": process["utilization"], "Power": power_w}
        figures |= {"Energy": so_far.total_mj, "Idle": idle_so_far(behind, gpus)}
        assert [name for name, value in figures.items() if not same(row["values"][name], value)] == []
    assert len({row["texts"]["Memory"] for row in shown.values()}) > 5


def holders_of(gpu: dict[str, Any], document: dict[str, Any], names: Sequence[str]) -> list[list[str]]:
    """The expected holders of a GPU's memory: name, size, confidence; measured before inferred, the largest first."""
    held = [
        (method, part["memory"][method], name, part["memory"]["confidence"])
        for method in ("measured", "inferred")
        for workload, name in zip(document["workloads"], names, strict=True)
        for part in workload["gpus"]
        if part["uuid"] == gpu["uuid"] and part["memory"][method]
    ]
    held.sort(key=lambda each: (each[0] != "measured", -each[1]))
    unattributed = gpu["memory"]["unattributed"]
    return [
        [name, size(bytes_), "" if method == "measured" else f"inferred, {percent(sure)}"]
        for method, bytes_, name, sure in held
    ] + ([["unattributed", size(unattributed), ""]] if unattributed else [])


def test_every_text_and_figure_of_a_gpu_is_that_of_the_document(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    attribution = demo.now()
    document = document_of(attribution)
    reported_workloads = [workload for workload in attribution.workloads if workload.reported_gpus]
    labels = workload_names(reported_workloads)
    names = [labels[name_key(workload)] for workload in reported_workloads]
    cards = tab.value(CARDS)
    assert len(cards) == len(document["gpus"]) == 4
    for card, gpu, behind in zip(cards, document["gpus"], attribution.gpus, strict=True):
        memory = gpu["memory"]
        used = memory["limit"] - memory["free"] - memory["reserved"]
        mean_w = gpu["energy"]["delta_mj"] / 1000 / 5  # over a cycle, like the power of workloads
        reported = [gpu["utilization"], mean_w, used, gpu["temperature_c"]]
        in_use = out_of(used, memory["limit"])
        written = [percent(reported[0]), watts(mean_w), in_use, celsius(gpu["temperature_c"])]
        plotted = [percent(reported[0]), watts(mean_w), size(used)]
        assert card["title"] == f"GPU {gpu['index']} {model(gpu['name'])}"
        assert card["state"] == "ok"
        assert card["amount"] == f"{size(used)} of {size(memory['limit'])} in use"
        assert card["texts"] == written
        assert all(same(*pair) for pair in zip(card["figures"], reported, strict=True))
        assert card["beside"] == ["", f"of {watts(behind.reading.power_limit_w)}", "", ""]
        assert card["holders"] == holders_of(gpu, document, names)
        assert sum(card["held"]) == memory["measured"] + memory["inferred"] + memory["unattributed"]
        assert card["bars"] == 1 + len(gpu["mig"] or [])
        for plot, name, text in zip(card["plots"], ("Utilisation", "Power", "Memory"), plotted, strict=True):
            assert plot.startswith(f"{name} in the last hour: ")
            assert plot.endswith(": unknown" if text == UNKNOWN else f", now {text}")
    assert Counter(UNKNOWN in card["texts"] for card in cards) == {True: 1, False: 3}


def test_the_totals_are_those_of_the_document_and_are_explained(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    document = document_of(demo.now())
    splits = [gpu["memory"] for gpu in document["gpus"]]
    used = sum(each["limit"] - each["free"] - each["reserved"] for each in splits)
    unattributed = sum(each["unattributed"] for each in splits)
    power_w = sum(gpu["energy"]["delta_mj"] for gpu in document["gpus"]) / 1000 / 5
    held: dict[str, list[int]] = {"idle": [], "unknown": []}
    for workload in document["workloads"]:
        state = state_text([(part["state"], part["idle_seconds"]) for part in workload["gpus"]]).split(" ")[0]
        memory = [part["memory"][method] for part in workload["gpus"] for method in ("measured", "inferred")]
        held.setdefault(state, []).append(sum(each or 0 for each in memory))
    assert all(held.values())
    assert [list(each[:2]) for each in tab.value(TOTALS)] == [
        ["GPUs", "4 "],
        ["Memory in use", f"{size(used)} of {size(sum(each['limit'] for each in splits))}"],
        ["Attributed", f"{percent((used - unattributed) / used)} of the memory in use"],
        ["Power", f"{watts(power_w)} "],
        [
            "Held while idle",
            f"{size(sum(held['idle']))} by {len(held['idle'])} workloads, {size(sum(held['unknown']))} undecided",
        ],
    ]
    values = [4, used, (used - unattributed) / used, power_w, sum(held["idle"])]
    assert all(same(value, reported) for (_, _, value, _), reported in zip(tab.value(TOTALS), values, strict=True))
    assert all(len(how) > 20 for _, _, _, how in tab.value(TOTALS))


def test_every_column_is_explained(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    tab.value("document.querySelector('.open').click()")
    headings = "[...document.querySelectorAll('#columns button, .details thead th')]"
    said = tab.value(f"{headings}.map(node => [node.innerText, node.title])")
    assert len(said) == 9 + 9
    assert [name for name, what in said if len(what) < 10] == []
    assert "share of a gpu's sms" in dict(said)["SM"].lower()


def test_cost_while_idle_is_unknown_without_utilisation(browser: Browser, demo: SteppedAgent) -> None:
    tab = open_page(browser, demo)
    costs = {(row["name"], row["texts"]["idle"]): row["how"]["cost"] for row in tab.value(TABLE)}
    unknown = "so far, at the configured prices; unknown how much of it while idle"
    assert costs["reranker", UNKNOWN] == unknown  # on an instance
    assert all((words == unknown) is (idle == UNKNOWN) for (_, idle), words in costs.items())
