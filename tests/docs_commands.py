"""Commands in the pages, and how each is checked.

Blocks of shell are split into commands. A table has the check of each command: it is run, or the part of it that
changes nothing is run, or another test covers it, or it cannot run in tests, for a stated reason. A rule matches a
whole command. A command without a rule is an error, so that no command is added without a check. In every command the
agent's arguments must be accepted by its own parser, other programs' flags must be known (docs_programs.py), and named
files must exist.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from otel_gpu.cli.commands import COMMANDS, Invocation
from otel_gpu.cli.parser import parse
from otel_gpu.cli.pause import parse_pause_s
from otel_gpu.config.checks import check_exports
from otel_gpu.errors import UsageError
from otel_gpu.top.remote import agent_address
from tests.docs_programs import Misused, program_of, taken_apart

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
"""Messages of the agent that look like commands."""
PLACES: Final = r"(?<![\w/.<-])((?:bench|collector-config|constraints|deploy|docs|otel_gpu|tests|tools)/[\w./*-]*[\w*])"
"""Paths of this repository."""
MADE: Final = frozenset({"deploy/compose/.env"})
"""Paths that the reader of a page creates."""

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
        """Its words, without pipes and redirections."""
        words = shlex.split(self.text)
        end = min((words.index(word) for word in ("|", ">") if word in words), default=len(words))
        return words[:end]

    @property
    def of_otel_gpu(self) -> list[str] | None:
        """The arguments of ``otel-gpu``, also inside a container; ``None`` if it runs another program."""
        words = self.words
        if Path(words[0]).name == "otel-gpu":
            return words[1:]
        inside = taken_apart(words).of_agent if program_of(words) is not None else None
        return None if inside is None else list(inside)

    @property
    def misuse(self) -> str | None:
        """The error in its text: a flag, subcommand, value or file; ``None`` without one."""
        words = self.words
        files = re.findall(PLACES, self.text)
        try:
            if program_of(words) is not None:
                files += [file for file in taken_apart(words).files if not file.startswith("/")]
            arguments = self.of_otel_gpu
            if arguments is not None:
                check_arguments(arguments)
        except (Misused, UsageError) as error:
            return str(error)
        missing = [file for file in files if file not in MADE and not list(ROOT.glob(file))]
        return f"there is no {missing[0]}" if missing else None


def check_arguments(words: list[str]) -> None:
    """Raise UsageError if the agent does not accept these arguments."""
    parsed = parse(words)
    if parsed.command == "top" and parsed.url is not None:
        agent_address(parsed.url, "--url")
    if parsed.command == "pause" and vars(parsed)["for"] is not None:
        parse_pause_s(vars(parsed)["for"])
    command = COMMANDS[parsed.command]
    loaded = Invocation(command, vars(parsed), {}).resolved().loaded()
    if "exporters" in command.settings:
        check_exports(loaded)


# ---------------------------------------------------------------------------- pages


def name(page: Path) -> str:
    """A page by its path below the root of the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: str, text: str) -> Iterator[Block]:
    """Every fenced block."""
    for found in _FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, found.start("text")) + 1, found["language"], found["text"])


def spans(text: str) -> list[str]:
    """Code between backticks outside of blocks, each on one line."""
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


def is_command(line: str) -> bool:
    """Whether a line starts like a command: a program that pages use, and an argument."""
    words = line.removeprefix("$ ").split(" ")
    return len(words) > 1 and (
        program_of(words) is not None
        or bool(re.match(r"(\S*/)?otel-gpu [a-z]|make [a-z]|python3? -|sudo [a-z]|\S+/(python|pip) ", line))
    )


def is_shell(block: Block) -> bool:
    """Whether it has commands. One without a language has, if a line begins like one: output is marked ``text``."""
    return block.language in SHELL or (not block.language and any(map(is_command, block.text.splitlines())))


def all_commands() -> list[Command]:
    """Those of all pages."""
    return [command for block in all_blocks() if is_shell(block) for command in commands(block)]


def named_commands() -> list[Command]:
    """Commands between backticks, but those of otel-gpu that leave something out."""
    found = []
    for page in PAGES:
        for code in spans(page.read_text(encoding="utf-8")):
            partial = code.startswith("otel-gpu ") and re.search(r"…|\b[A-Z]{3,}\b|[<\[|]", code)
            if is_command(code) and not partial and code not in MESSAGES:
                found.append(Command(name(page), 0, code))
    return found


def anchors(text: str) -> set[str]:
    """The anchors of a page: its headings, as GitHub makes them."""
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


# ---------------------------------------------------------------------------- checks


class How(StrEnum):
    """How a command is checked."""

    RUN = "run"
    """Run unchanged on a simulated host: by test_docs.py, or by test_docs_real.py in a network namespace."""
    CHECKED = "checked"
    """Checked without doing it, by such a test: make -n, helm template, a build, a collection."""
    COVERED = "covered"
    """Another test does the same; ``by`` names it."""
    NOT_HERE = "not here"
    """Only its arguments are checked; ``by`` has the reason."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The check of all commands that match ``pattern``.

    ``same`` are texts that must be in such commands and in the test that covers them.
    """

    pattern: str
    how: How
    by: str
    same: tuple[str, ...] = ()


_REAL: Final = "tests/real/test_docs_real.py"
_PAGES: Final = "tests/unit/test_docs.py"
_IMAGE: Final = "tests/real/test_image_real.py::test_the_image_runs_the_agent"
_DEPLOY: Final = "tests/real/test_deploy_real.py"
_COMPOSE: Final = "tests/real/test_compose_real.py::test_compose_loads_the_project_and_every_mounted_file_exists"
_SCC: Final = f"{_DEPLOY}::test_the_constraint_allows_exactly_what_the_pod_requests"
_MIG: Final = f"{_DEPLOY}::test_the_patch_in_the_readme_allows_exactly_what_the_mig_overlay_requests"
_PAUSE: Final = "tests/e2e/test_pause_and_restart.py::test_a_paused_agent_releases_the_driver_until_resumed"
_TOP: Final = "tests/e2e/test_top.py"
_URL: Final = "tests/unit/cli/test_top.py::test_a_wrong_url_is_reported_first"
_SCHEMA: Final = "tests/unit/test_deploy.py::test_the_schema_of_the_chart_has_every_setting_and_no_other"
_PRINTED: Final = "tests/unit/metrics/test_docs.py::test_the_command_prints_the_page"
_COLLECTOR: Final = "tests/real/test_collector_config_real.py"
_STALE: Final = f"{_PAGES}::test_generated_parts_are_not_stale"

RULES: Final = (
    # otel-gpu itself; Command.misuse checks its arguments in any case
    Rule(r"\. \.venv/bin/activate", How.RUN, f"{_REAL}::test_the_readme_puts_the_program_on_path"),
    Rule(r"otel-gpu (run|demo)( .+)?", How.RUN, f"{_REAL}::test_an_agent_starts_with_a_command_of_a_page"),
    Rule(r"otel-gpu (once|config|metrics|doctor)( .+)?", How.RUN, f"{_REAL}::test_a_command_of_a_page_succeeds"),
    Rule(r"otel-gpu pause --for 10m", How.COVERED, _PAUSE, ("pause", "--for", "10m")),
    Rule(r"otel-gpu resume", How.COVERED, _PAUSE, ("resume",)),
    Rule(
        r"otel-gpu top --url \S+", How.COVERED,
        f"{_TOP}::test_the_order_on_the_screen_is_that_of_the_agents_json", ("top", "--url"),
    ),
    Rule(r'export OTEL_GPU_URL="\$\(cat ~/\.config/otel-gpu/url\)"', How.COVERED, _URL, ("OTEL_GPU_URL",)),
    Rule(
        r"otel-gpu top( --source (sim|auto))?", How.COVERED,
        f"{_TOP}::test_keys_sort_filter_open_freeze_explain_and_quit", ("top", "--source"),
    ),
    Rule(r"curl -N http://127\.0\.0\.1:9464/\S+", How.RUN, f"{_REAL}::test_an_agent_responds_to_requests_of_a_page"),
    # for developers
    Rule(r"make run", How.RUN, f"{_REAL}::test_make_run_starts_an_agent_that_ctrl_c_stops"),
    Rule(r"make [a-z-]+", How.CHECKED, f"{_PAGES}::test_what_a_page_makes_can_be_made"),
    Rule(
        r"\.venv/bin/python -m pytest -q tests/\S+( -k \w+)?", How.CHECKED,
        f"{_REAL}::test_tests_named_in_a_page_exist",
    ),
    Rule(r"\.venv/bin/otel-gpu metrics --format markdown > docs/metrics\.md", How.COVERED, _PRINTED, ("markdown",)),
    Rule(r"\.venv/bin/python -m tools\.configuration_page", How.COVERED, _STALE, ("configuration_page",)),
    Rule(r"\.venv/bin/python -m tools\.readme_table", How.COVERED, _STALE, ("readme_table",)),
    Rule(r"\.venv/bin/python tools/manifests/settings\.py", How.COVERED, _SCHEMA, ("tools/manifests/settings.py",)),
    Rule(r"python3 -c 'import bcrypt[^']+'", How.RUN, f"{_PAGES}::test_a_password_is_hashed_as_a_page_says"),
    Rule(
        r"htpasswd -nBC 10 \"\" \| tr -d ':\\n'", How.NOT_HERE,
        "needs Apache; another command of the page gives the same result",
    ),
    Rule(
        r"sed -i 's\|runbook_url: docs/\|\S+ \S+docs/\|' /etc/prometheus/rules/alerts\.yaml", How.RUN,
        f"{_PAGES}::test_runbooks_become_links_as_a_page_says",
    ),
    # images and containers
    Rule(
        r"docker build( --build-arg VERSION=\S+)?( --build-arg REVISION=\$\(git rev-parse HEAD\))?"
        r" -t (registry\.example/)?otel-gpu(:\S+)? \.",
        How.COVERED, _IMAGE, ("build",),
    ),
    Rule(
        r"(docker|podman) run .+ (otel-gpu(:\S+)?|…)", How.NOT_HERE,
        "needs a GPU and NVIDIA's runtime; test_image_real.py has neither",
    ),
    Rule(r"docker push registry\.example/otel-gpu:\S+", How.NOT_HERE, "needs a registry"),
    Rule(
        r"docker compose( -f deploy/compose/(compose|demo|compat)\.yaml)+ (up --build -d|exec agent otel-gpu doctor)",
        How.COVERED, _COMPOSE, ("compose.yaml", "demo.yaml", "compat.yaml"),
    ),
    Rule(
        r"cp deploy/compose/\.env\.example deploy/compose/\.env", How.RUN,
        f"{_PAGES}::test_the_required_variables_of_compose_are_in_its_example",
    ),
    # clusters
    Rule(r"(kubectl|oc) apply -k \S+", How.CHECKED, f"{_REAL}::test_kustomizations_applied_in_a_page_can_be_built"),
    Rule(r"oc apply -f deploy/openshift/scc\.yaml", How.COVERED, _SCC, ("scc.yaml",)),
    Rule(r"oc patch scc otel-gpu-scc --type=json -p '\[[^']+\]'", How.COVERED, _MIG, ("oc", "patch", "scc")),
    Rule(r"helm install otel-gpu \S+ .+", How.CHECKED, f"{_REAL}::test_charts_installed_in_a_page_can_be_rendered"),
    Rule(
        r"(kubectl|oc) (-n otel-gpu exec daemonset/otel-gpu -- otel-gpu doctor|create namespace otel-gpu"
        r"|label namespace otel-gpu pod-security\.kubernetes\.io/enforce=privileged)",
        How.NOT_HERE, "needs a cluster",
    ),
    Rule(
        r"otelcol-contrib validate --config \S+", How.COVERED,
        f"{_COLLECTOR}::test_a_configuration_is_valid", ("validate",),
    ),
    Rule(
        r"otelcol-contrib --config collector-config/debug\.yaml", How.COVERED,
        f"{_COLLECTOR}::test_a_configuration_starts_without_a_warning", ("debug",),
    ),
    # hosts
    Rule(
        r"python3 -m venv /opt/otel-gpu", How.NOT_HERE,
        "installs into the system; tools/check-package.sh does it elsewhere",
    ),
    Rule(
        r"/opt/otel-gpu/bin/pip install( --require-hashes)? --no-deps (-r constraints/runtime\.txt|\.)", How.NOT_HERE,
        "needs a package index; so does tools/check-package.sh",
    ),
    Rule(
        r"install -D -m (644|600) deploy/systemd/\S+ /etc/(systemd/system|otel-gpu)/\S+", How.RUN,
        f"{_PAGES}::test_files_of_the_unit_are_installed_where_systemd_and_the_unit_read_them",
    ),
    Rule(
        r"systemctl (daemon-reload|enable --now otel-gpu)", How.NOT_HERE, "needs systemd as the init of this machine"
    ),
    Rule(r"nvidia-smi --gpu-reset -i \d+", How.NOT_HERE, "needs a GPU"),
)  # fmt: skip


def rule(command: Command) -> Rule | None:
    """Its rule; ``None`` without one."""
    return next((each for each in RULES if re.fullmatch(each.pattern, command.text)), None)


def run_by(test: str) -> list[Command]:
    """The commands that a test of the pages has to run, or to check."""
    return [
        command
        for command in all_commands()
        if (found := rule(command)) is not None
        and found.how in {How.RUN, How.CHECKED}
        and found.by.endswith(f"::{test}")
    ]
