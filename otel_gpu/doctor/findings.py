"""Findings of the doctor: a verdict per subject, with a fix where something is wrong; as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from otel_gpu.version import __version__
from otel_gpu.view.terminal import Paint, Style, printable


class Verdict(StrEnum):
    """How well one subject works.

    Unused: not requested, nothing is lost. Degraded: some figures are missing. Blind: nothing can be attributed.
    """

    OK = "ok"
    UNUSED = "unused"
    DEGRADED = "degraded"
    BLIND = "blind"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was found about a subject, and how to fix it."""

    subject: str
    verdict: Verdict
    found: str
    fix: str | None = None


def ok(subject: str, found: str, fix: str | None = None) -> Finding:
    """It works; ``fix`` is an optional improvement."""
    return Finding(subject, Verdict.OK, found, fix)


def unused(subject: str, found: str, fix: str | None = None) -> Finding:
    """Not requested, and nothing is lost; ``fix`` is how to enable it."""
    return Finding(subject, Verdict.UNUSED, found, fix)


def degraded(subject: str, found: str, fix: str) -> Finding:
    """Some figures are missing; ``fix`` restores them."""
    return Finding(subject, Verdict.DEGRADED, found, fix)


def blind(subject: str, found: str, fix: str) -> Finding:
    """Nothing can be attributed until ``fix`` is applied."""
    return Finding(subject, Verdict.BLIND, found, fix)


def is_blind(findings: Sequence[Finding]) -> bool:
    """Whether attribution as a whole cannot work."""
    return any(finding.verdict is Verdict.BLIND for finding in findings)


# ---------------------------------------------------------------------------- JSON and text


def to_json(findings: Sequence[Finding]) -> str:
    """The report as one JSON object, all ASCII. Its keys are a contract (docs/troubleshooting.md)."""
    return json.dumps(to_document(findings), indent=2)


def to_document(findings: Sequence[Finding]) -> dict[str, Any]:
    """The report as plain data: the worst verdict and the findings."""
    verdicts = {finding.verdict for finding in findings}
    worst = next((verdict for verdict in (Verdict.BLIND, Verdict.DEGRADED) if verdict in verdicts), Verdict.OK)
    return {
        "version": __version__,
        "verdict": worst.value,
        "findings": [
            {
                "subject": finding.subject,
                "verdict": finding.verdict.value,
                "found": finding.found,
                "fix": finding.fix,
            }
            for finding in findings
        ],
    }


def to_text(findings: Sequence[Finding], paint: Paint, width: int | None = None) -> str:
    """The report as lines, each fix below its finding; wrapped if there is a ``width``.

    A fix is never wrapped, so that it can be copied.
    """
    styles = {
        Verdict.OK: Style.GREEN,
        Verdict.UNUSED: Style.DIM,
        Verdict.DEGRADED: Style.YELLOW,
        Verdict.BLIND: Style.RED,
    }
    subjects = max(len(finding.subject) for finding in findings)
    indent = len(Verdict.DEGRADED) + 2 + subjects + 2
    lines = []
    for finding in findings:
        verdict = paint(finding.verdict.value.ljust(len(Verdict.DEGRADED)), styles[finding.verdict])
        first, *more = _wrapped(printable(finding.found), None if width is None else width - indent)
        faint = [Style.DIM] if finding.verdict is Verdict.UNUSED else []
        lines.append(f"{verdict}  {paint(f'{finding.subject.ljust(subjects)}  {first}', *faint)}")
        lines += [" " * indent + paint(line, *faint) for line in more]
        if finding.fix is not None:
            lines.append(f"{' ' * indent}{paint('fix:', Style.BOLD)} {printable(finding.fix)}")
    return "\n".join(lines) + "\n"


def _wrapped(text: str, width: int | None) -> list[str]:
    if width is None:
        return [text]
    return textwrap.wrap(text, max(width, 40), break_long_words=False, break_on_hyphens=False) or [""]
