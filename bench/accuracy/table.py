"""The table of measured errors with the verdicts of targets, as text or as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from bench.accuracy import ours, peers
from bench.accuracy.results import Results
from bench.accuracy.score import IdleSummary, Summary
from bench.accuracy.targets import CONSERVATION, IDLE, Verdict
from bench.accuracy.trials import BUSY, ENERGY, MEMORY, OURS

_ERROR: Final = "error per workload, mean / 95th percentile, % of truth"


class Section(NamedTuple):
    """A part of the table: a heading, and rows of which the first names the columns."""

    heading: str
    rows: list[list[str]]


def sections(results: Results, verdicts: Sequence[Verdict], order: Iterable[str]) -> list[Section]:
    """The whole table; ``order`` names the families."""
    families = list(order)
    judged: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        judged.setdefault((verdict.target.section, verdict.target.row), []).append(verdict)
    made = (
        _errors(results, judged, families, ENERGY, f"Energy: {_ERROR} ('+': with the agent's context power)"),
        _errors(results, judged, families, BUSY, f"Busy time: {_ERROR}"),
        _errors(results, judged, families, MEMORY, f"Inferred memory: {_ERROR}"),
        _idle(results, judged),
        _conservation(results, judged),
    )
    return [section for section in made if len(section.rows) > 1]


_Judged = Mapping[tuple[str, str], Sequence[Verdict]]


def _verdict(judged: _Judged, section: str, row: str) -> str:
    verdicts = judged.get((section, row), ())
    if not verdicts:
        return "-"
    failed = [verdict for verdict in verdicts if not verdict.passed]
    return f"{'FAIL' if failed else 'pass'}: {'; '.join(map(str, verdicts))}"


# ---------------------------------------------------------------------------- errors


def _errors(results: Results, judged: _Judged, families: Sequence[str], what: str, heading: str) -> Section:
    own = ours.MODELS if what == ENERGY else (OURS,)
    others = peers.MEMORY_FORMULAS if what == MEMORY else peers.BUSY_FORMULAS
    rows = [["world", "workloads", *own, *others, "targets"]]
    for family in families:
        formulas = results.errors.get((what, family))
        if formulas is not None:
            cells = [_error_cell(formulas[name]) for name in own] + [_better(formulas, name) for name in others]
            rows.append([family, str(formulas[own[0]].count), *cells, _verdict(judged, what, family)])
    return Section(heading, rows)


def _error_cell(summary: Summary) -> str:
    return f"{summary.mean:.1f} / {summary.p95:.0f}"


def _better(formulas: Mapping[str, Summary], name: str) -> str:
    plain, helped = formulas[name], formulas.get(name + peers.STANDING)
    if helped is None or plain.mean <= helped.mean:
        return _error_cell(plain)
    return f"{_error_cell(helped)} +"


# ---------------------------------------------------------------------------- idleness and conservation


def _idle(results: Results, judged: _Judged) -> Section:
    rules = (OURS, *peers.IDLE_FORMULAS)
    rows = [["process", "hours", *rules, "targets"]]
    for group, formulas in sorted(results.idle.items(), key=lambda item: _idle_order(item[0])):
        cells = [_idle_cell(formulas[rule]) for rule in rules]
        rows.append([group, f"{formulas[OURS].hours:.1f}", *cells, _verdict(judged, IDLE, group)])
    return Section("Idle: false alarms per hour, % of working time called idle, mean / longest delay in s", rows)


def _idle_order(group: str) -> tuple[str, str, int]:
    pattern, place, duty = group.split(", ")
    return place, pattern, int(duty.split()[0])


def _idle_cell(summary: IdleSummary) -> str:
    never = f" ({summary.never} never)" if summary.never else ""
    return (
        f"{summary.alarms_per_hour:.1f}/h {summary.false_percent:.1f} % "
        f"{summary.mean_delay_s:.0f}/{summary.worst_delay_s:.0f} s{never}"
    )


def _conservation(results: Results, judged: _Judged) -> Section:
    rows = [["largest conservation error", "bytes", "mJ", "targets"]]
    for section, row in judged:
        if section == CONSERVATION:
            cells = [str(results.conservation_bytes), str(results.conservation_mj)]
            rows.append([row, *cells, _verdict(judged, section, row)])
    return Section(f"Conservation, {results.worlds} worlds", rows)


# ---------------------------------------------------------------------------- formats


def as_text(parts: Iterable[Section]) -> Iterator[str]:
    """Lines with aligned columns."""
    for heading, rows in parts:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        yield heading
        for row in rows:
            yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        yield ""


def as_markdown(parts: Iterable[Section]) -> Iterator[str]:
    """Lines of Markdown tables."""
    for heading, rows in parts:
        yield f"**{heading}**"
        yield ""
        for number, row in enumerate(rows):
            yield f"| {' | '.join(row)} |"
            if number == 0:
                yield f"|{'---|' * len(row)}"
        yield ""
