"""Commands in the pages, and how each is known to be true.

Blocks of shell are taken apart into commands, and a table says of each how it is checked: it is run, or another test
covers it, or it cannot be run where tests run, for a reason. What no rule knows is an error, so that nobody adds a
command that nothing checks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = tuple(
    sorted(
        path
        for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "collector-config/**/*.md")
        for path in ROOT.glob(pattern)
    )
)
SHELL: Final = frozenset({"sh", "bash", "console", "shell"})
MESSAGES: Final = frozenset({"otel-gpu is running"})
"""What the agent says, and nobody types."""

_FENCE: Final = re.compile(r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)
_SPAN: Final = re.compile(r"(?<!`)(?P<ticks>`+)(?!`)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)", re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page, and the number of its first line."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """One command, without its comment, its lines joined."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"

    @property
    def words(self) -> list[str]:
        """Its words, of the first part if it is a pipe, without where its output goes."""
        words = shlex.split(self.text)
        end = min((words.index(word) for word in ("|", ">") if word in words), default=len(words))
        return words[:end]

    @property
    def of_otel_gpu(self) -> list[str] | None:
        """What ``otel-gpu`` is told in it, also inside a container; ``None`` where that is not what it runs."""
        words = self.words
        if Path(words[0]).name == "otel-gpu":
            return words[1:]
        inside = {"docker", "kubectl", "oc", "podman"}
        if words[0] in inside and "exec" in words and "otel-gpu" in words[words.index("exec") + 2 :]:
            return words[words.index("otel-gpu", words.index("exec") + 2) + 1 :]
        return None


# ---------------------------------------------------------------------------- pages


def name(page: Path) -> str:
    """A page by its path below the root of the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: str, text: str) -> Iterator[Block]:
    """Every fenced block."""
    for found in _FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, found.start("text")) + 1, found["language"], found["text"])


def spans(text: str) -> list[str]:
    """What stands between backticks in the text around blocks, on one line each."""
    return [" ".join(found["code"].split()) for found in _SPAN.finditer(_FENCE.sub("", text))]


def commands(block: Block) -> Iterator[Command]:
    """The commands of a block of shell."""
    pending, began = "", 0
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        began = began if pending else number
        pending += re.sub(r"(^|\s)#.*$", "", line).strip()
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        for part in re.split(r"\s&&\s", pending):
            if part.strip():
                yield Command(block.page, began, part.strip())
        pending = ""


def all_blocks() -> list[Block]:
    """Those of all pages."""
    return [block for page in PAGES for block in blocks(name(page), page.read_text(encoding="utf-8"))]


def all_commands() -> list[Command]:
    """Those of all pages."""
    return [command for block in all_blocks() if block.language in SHELL for command in commands(block)]


def named_commands() -> list[Command]:
    """Whole commands of otel-gpu between backticks: those that leave nothing out."""
    found = []
    for page in PAGES:
        for code in spans(page.read_text(encoding="utf-8")):
            whole = not re.search(r"…|\b[A-Z]{3,}\b|[<\[|]", code)
            if whole and code not in MESSAGES and re.match(r"otel-gpu [a-z]", code):
                found.append(Command(name(page), 0, code))
    return found


def anchors(text: str) -> set[str]:
    """What can be linked to in a page: its headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?)\s*$", _FENCE.sub("", text), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while (slug if not number else f"{slug}-{number}") in found:
            number += 1
        found.add(slug if not number else f"{slug}-{number}")
    return found


def links(text: str) -> list[str]:
    """Targets of links and pictures."""
    prose = _SPAN.sub("", _FENCE.sub("", text))
    return re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r'(?:src|srcset|href)="([^"]+)"', prose)


# ---------------------------------------------------------------------------- how each is checked


class How(StrEnum):
    """How a command is known to be true."""

    RUN = "run"
    """As it stands, on a simulated host: by test_docs.py, or by test_docs_real.py in a network of its own."""
    COVERED = "covered"
    """By a test that does the same; ``by`` names it."""
    NOT_HERE = "not here"
    """Only what it names is checked; ``by`` says why."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Commands that begin like this are checked like that."""

    pattern: str
    how: How
    by: str


_REAL: Final = "tests/real/test_docs_real.py"
_PAGES: Final = "tests/unit/test_docs.py"
_IMAGE: Final = "tests/real/test_image_real.py::test_the_image_is_the_agent"
_DEPLOY: Final = "tests/real/test_deploy_real.py"
_COMPOSE: Final = (
    "tests/real/test_compose_real.py::test_compose_takes_the_project_and_every_file_that_it_mounts_is_there"
)
_UNIT: Final = f"{_DEPLOY}::test_systemd_finds_nothing_wrong_with_the_unit_and_it_is_as_safe_as_its_page_says"
_SCC: Final = f"{_DEPLOY}::test_the_constraint_allows_what_the_pod_asks_for_and_nothing_else"
_MIG: Final = f"{_DEPLOY}::test_with_what_the_page_says_of_mig_the_constraint_allows_what_the_pod_then_asks_for"
_PAUSE: Final = (
    "tests/e2e/test_pause_and_renewal.py::test_an_agent_that_is_paused_lets_go_says_so_and_goes_on_when_resumed"
)
_TOP: Final = "tests/e2e/test_top.py"
_REMOTE: Final = "tests/unit/top/test_remote.py"
_SCHEMA: Final = "tests/unit/test_deploy.py::test_the_schema_of_the_chart_has_every_setting_and_no_other"
_PRINTED: Final = "tests/unit/metrics/test_docs.py::test_the_command_prints_the_page"
_COLLECTOR: Final = "tests/real/test_collector_config_real.py::test_a_configuration_is_valid"

RULES: Final = (
    # otel-gpu itself: what it is told is settled in test_docs.py, whatever becomes of it here.
    Rule(r"otel-gpu (run|demo)\b", How.RUN, f"{_REAL}::test_an_agent_starts_as_a_page_says"),
    Rule(r"otel-gpu (once|config|metrics|doctor)\b", How.RUN, f"{_REAL}::test_a_command_answers_as_a_page_says"),
    Rule(r"otel-gpu (pause|resume)\b", How.COVERED, _PAUSE),
    Rule(r"otel-gpu top\b.* --url\b", How.COVERED, f"{_TOP}::test_the_order_on_the_screen_is_that_of_the_agents_json"),
    Rule(r"export OTEL_GPU_URL=", How.COVERED, f"{_REMOTE}::test_passwords_are_given_by_the_url_and_never_shown"),
    Rule(r"otel-gpu top\b", How.COVERED, f"{_TOP}::test_keys_sort_filter_open_freeze_explain_and_quit"),
    Rule(r"curl\b", How.RUN, f"{_REAL}::test_what_a_page_asks_an_agent_is_answered"),
    # what developers do
    Rule(r"make [a-z-]+$", How.RUN, f"{_PAGES}::test_what_a_page_makes_can_be_made"),
    Rule(r"\.venv/bin/python -m pytest\b", How.RUN, f"{_REAL}::test_tests_that_a_page_names_are_found"),
    Rule(r"\.venv/bin/otel-gpu metrics --format markdown > docs/metrics\.md$", How.COVERED, _PRINTED),
    Rule(r"\.venv/bin/python -m tools\.configuration_page$", How.COVERED, f"{_PAGES}::test_what_is_made_is_not_stale"),
    Rule(r"\.venv/bin/python -m tools\.readme_table$", How.COVERED, f"{_PAGES}::test_what_is_made_is_not_stale"),
    Rule(r"\.venv/bin/python tools/manifests/settings\.py$", How.COVERED, _SCHEMA),
    Rule(r"python3 -c 'import bcrypt", How.RUN, f"{_PAGES}::test_a_password_is_hashed_as_a_page_says"),
    Rule(r"htpasswd\b", How.NOT_HERE, "is Apache's, and not installed; what it makes is bcrypt's, as the other way's"),
    # images and containers
    Rule(r"docker build\b", How.COVERED, _IMAGE),
    Rule(r"(docker|podman) run\b", How.NOT_HERE, "needs a GPU and NVIDIA's runtime; test_image_real.py goes without"),
    Rule(r"docker push\b", How.NOT_HERE, "needs somebody's registry"),
    Rule(r"docker compose\b", How.COVERED, _COMPOSE),
    Rule(r"cp deploy/compose/\.env\.example\b", How.COVERED, _COMPOSE),
    # clusters
    Rule(r"(kubectl|oc) apply -k\b", How.RUN, f"{_REAL}::test_what_a_page_applies_can_be_built"),
    Rule(r"oc apply -f deploy/openshift/scc\.yaml$", How.COVERED, _SCC),
    Rule(r"oc patch scc\b", How.COVERED, _MIG),
    Rule(r"helm install\b", How.RUN, f"{_REAL}::test_what_a_page_installs_can_be_rendered"),
    Rule(r"(kubectl|oc) (-n \S+ )?(exec|create|label)\b", How.NOT_HERE, "needs a cluster"),
    Rule(r"otelcol-contrib\b", How.COVERED, _COLLECTOR),
    # hosts
    Rule(r"python3 -m venv /opt/", How.NOT_HERE, "installs into the system; tools/check-package.sh does it elsewhere"),
    Rule(r"/opt/otel-gpu/bin/pip install\b", How.NOT_HERE, "needs a package index; so does tools/check-package.sh"),
    Rule(r"install -D -m \d+ deploy/systemd/", How.COVERED, _UNIT),
    Rule(r"systemctl\b", How.NOT_HERE, "needs systemd as the init of this machine"),
    Rule(r"nvidia-smi\b", How.NOT_HERE, "needs a GPU"),
)


def rule(command: Command) -> Rule | None:
    """How it is checked; ``None`` where no rule knows it."""
    return next((each for each in RULES if re.match(each.pattern, command.text)), None)


def run_by(test: str) -> list[Command]:
    """The commands that a test of the pages has to run."""
    return [
        command
        for command in all_commands()
        if (found := rule(command)) is not None and found.how is How.RUN and found.by.endswith(f"::{test}")
    ]
