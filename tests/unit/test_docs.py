"""The pages tell the truth, as far as text can be checked: commands, flags, variables, metrics, links, figures."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import bcrypt
import pytest
import yaml

from otel_gpu import commandline
from otel_gpu.attribution.energy import EnergyDivider, EnergyPolicy, Interval, Party
from otel_gpu.attribution.places import Place, ProcessAt
from otel_gpu.compat.exporters import EXPORTERS
from otel_gpu.config import SETTINGS
from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.identity import IDENTITY_KEYS
from otel_gpu.metrics.names import label_name, prometheus_name
from otel_gpu.model import ProcessKey, WorkloadKind, WorkloadRef
from otel_gpu.settings_check import check_exports
from tests.docs_commands import (
    MESSAGES,
    PAGES,
    ROOT,
    RULES,
    SHELL,
    Block,
    Command,
    How,
    all_blocks,
    all_commands,
    anchors,
    blocks,
    commands,
    links,
    name,
    named_commands,
    rule,
    run_by,
    spans,
)
from tools import configuration_page, readme_table

TEXTS: Final = {name(page): page.read_text(encoding="utf-8") for page in PAGES}
by_page = pytest.mark.parametrize("page", TEXTS)

OTHERS_FLAGS: Final = {
    "docker": "cap-add cap-drop cgroupns device gpus group-add health-cmd hostname no-healthcheck pid privileged "
    "read-only rm security-opt tmpfs user uts",
    "kubectl, helm": "all-namespaces as namespace set show-labels",
    "nvidia-smi, systemctl, curl": "gpu-reset query-gpu now unix-socket",
    "exporter-toolkit, container toolkit": "web accounting-mode",
    "Go's, in general": "name",
}
OTHERS_NAMES: Final = {"otel_gpu.errors", "otel_gpu.instrument"}
"""Of the package, which is called as the agent's own metrics begin."""
OTHER_VARIABLES: Final = {
    "OTEL_GPU_CONFIG",
    "OTEL_GPU_URL",
    "OTEL_GPU_COLLECTOR",
    "OTEL_GPU_TEST_DEPTH",
    "OTEL_GPU_TEST_NO_SKIP",
}


def own_flags() -> set[str]:
    """Every flag of every command, and those of exporters that are stood in for."""
    parser = commandline._parser()
    [subcommands] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    parsers = [parser, *subcommands.choices.values()]
    own = {flag for each in parsers for action in each._actions for flag in action.option_strings}
    return own | {f"--{option.name}" for exporter in EXPORTERS.values() for option in exporter.flags}


def own_names() -> set[str]:
    """Metrics and attributes in both spellings, and the metrics of exporters that are stood in for."""
    ours = {metric.name for metric in METRICS}
    keys = {key for metric in METRICS for key in metric.keys} | set(IDENTITY_KEYS)
    theirs = {f"{exporter.prefix}{family.name}" for exporter in EXPORTERS.values() for family in exporter.families}
    return ours | keys | theirs | {prometheus_name(metric) for metric in METRICS} | {label_name(key) for key in keys}


# ---------------------------------------------------------------------------- commands


def test_every_command_has_a_rule_that_says_how_it_is_checked() -> None:
    unknown = [str(command) for command in all_commands() if rule(command) is None]
    assert unknown == [], "add a rule to tests/docs_commands.py"


def test_every_rule_is_of_some_command() -> None:
    used = {rule(command) for command in all_commands()}
    assert [each.pattern for each in RULES if each not in used] == []


@pytest.mark.parametrize("test", sorted({each.by for each in RULES if each.how is not How.NOT_HERE}))
def test_what_a_rule_points_at_is_there(test: str) -> None:
    file, _, function = test.partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_a_block_of_commands_says_that_it_is_shell() -> None:
    programs = r"(otel-gpu [a-z]|curl|docker|podman|kubectl|oc|helm|make [a-z]|python3?|sudo|systemctl|nvidia-smi)\b"
    unmarked = [
        block for block in all_blocks() if block.language in ("", "text") and re.match(rf"\$? *{programs}", block.text)
    ]
    assert unmarked == []


def test_shell_understands_every_block_of_it() -> None:
    shell = "\n".join(block.text for block in all_blocks() if block.language in SHELL)
    result = subprocess.run(["bash", "-n"], input=shell, capture_output=True, encoding="utf-8", check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    sorted({tuple(each.of_otel_gpu or ()) for each in (*all_commands(), *named_commands())} - {()}),
    ids=" ".join,
)
def test_what_otel_gpu_is_told_is_taken(words: tuple[str, ...]) -> None:
    parsed = commandline._parse(words)
    if parsed.command in ("metrics", "setup"):
        return
    loaded = commandline._settle(parsed, {}).loaded()
    if "exporters" in commandline._COMMANDS[parsed.command]:
        check_exports(loaded)


def test_what_a_page_makes_can_be_made() -> None:
    made = {command.words[1] for command in run_by("test_what_a_page_makes_can_be_made")}
    made |= {code.split()[1] for text in TEXTS.values() for code in spans(text) if re.match(r"make [a-z-]+", code)}
    words = ["make", "--no-print-directory", "-n", *sorted(made)]
    alone = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    result = subprocess.run(words, cwd=ROOT, env=alone, capture_output=True, encoding="utf-8", check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_password_is_hashed_as_a_page_says() -> None:
    [command] = run_by("test_a_password_is_hashed_as_a_page_says")
    result = subprocess.run(
        [sys.executable, "-W", "ignore", *command.words[1:]],
        input="open sesame\n", capture_output=True, encoding="utf-8", check=True, start_new_session=True,
    )  # fmt: skip
    assert bcrypt.checkpw(b"open sesame", result.stdout.split()[-1].encode())


# ---------------------------------------------------------------------------- what is named


@by_page
def test_flags_exist(page: str) -> None:
    foreign = {f"--{flag}" for flags in OTHERS_FLAGS.values() for flag in flags.split()}
    named = {flag for code in spans(TEXTS[page]) for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", code)}
    assert named - foreign <= own_flags()


@by_page
def test_commands_exist(page: str) -> None:
    codes = set(spans(TEXTS[page])) - MESSAGES
    named = {word for code in codes for word in re.findall(r"^otel-gpu ([a-z]\S*)", code)}
    assert named <= commandline._COMMANDS.keys()


def test_every_command_is_in_the_readme() -> None:
    table = TEXTS["README.md"].partition("## Commands\n")[2].partition("\n## ")[0]
    named = {
        code.removeprefix("otel-gpu ").split()[0]
        for code in re.findall(r"(?m)^\| (.+?) \|", table)
        for code in spans(code)
    }
    assert commandline._COMMANDS.keys() <= named


@by_page
def test_variables_exist(page: str) -> None:
    known = {variable for setting in SETTINGS for variable in setting.variables}
    assert set(re.findall(r"\bOTEL_GPU_[A-Z_]*[A-Z]\b", TEXTS[page])) <= known | OTHER_VARIABLES


@by_page
def test_metrics_and_attributes_exist(page: str) -> None:
    named = {
        word
        for code in spans(TEXTS[page])
        for word in re.findall(r"(?<![\w./:-])((?:hw|gpu|otel_gpu)[._][a-z_.]*[a-z](?:\.\*)?)(?![\w/])", code)
        if not word.endswith(".py")
    }
    known = own_names() | OTHERS_NAMES
    wrong = [
        word
        for word in named - known
        if not (word.endswith(".*") and any(each.startswith(word[:-1]) for each in known))
    ]
    assert wrong == []


@by_page
def test_paths_of_this_repository_exist(page: str) -> None:
    text = [*spans(TEXTS[page]), *(command.text for block in blocks(page, TEXTS[page]) for command in commands(block))]
    places = r"(?<![\w/.<-])((?:bench|collector-config|constraints|deploy|docs|otel_gpu|tests|tools)/[\w./*-]*[\w*])"
    named = {path for each in text for path in re.findall(places, each)}
    made = {"deploy/compose/.env"}
    assert [path for path in named - made if not list(ROOT.glob(path))] == []


@by_page
def test_links_lead_somewhere(page: str) -> None:
    wrong = []
    for target in links(TEXTS[page]):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            wrong.append(target)
    assert wrong == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in links(page.read_text(encoding="utf-8")):
            path = (page.parent / target.partition("#")[0]).resolve()
            waiting += [path] if path.suffix == ".md" and path.is_file() else sorted(path.glob("*.md"))
    assert [name(page) for page in PAGES if page not in reached] == []


@pytest.mark.parametrize("block", [each for each in all_blocks() if each.language in ("yaml", "python")], ids=str)
def test_a_block_can_be_read(block: Block) -> None:
    if block.language == "yaml":
        assert list(yaml.safe_load_all(block.text))
    else:
        compile(block.text, block.page, "exec")


# ---------------------------------------------------------------------------- what is made, and what is computed


@pytest.mark.parametrize("tool", [configuration_page, readme_table], ids=["configuration_page", "readme_table"])
def test_what_is_made_is_not_stale(tool: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--check"]) == 0, f"run: python -m {tool.__name__}"  # type: ignore[attr-defined]
    assert capsys.readouterr().out == ""


def test_a_table_that_is_stale_is_noticed_and_nothing_around_it_is_touched() -> None:
    page = TEXTS["docs/configuration.md"]
    stale = page.replace("| `interval` | `5s` |", "| `interval` | `9s` |")
    assert stale != page
    assert configuration_page.renewed(stale) == page
    with pytest.raises(ValueError, match="has no table"):
        configuration_page.renewed("# Configuration\n")


def test_the_energy_of_the_example_divides_as_the_page_says() -> None:
    page = TEXTS["docs/concepts.md"]
    for policy in EnergyPolicy:
        [(cells)] = re.findall(rf"^\| `{policy}` \| (.+) \|$", page, re.MULTILINE)
        told = [int(cell.rpartition("= ")[2].removesuffix(" J")) for cell in cells.split(" | ")]
        parties = [
            Party(
                ProcessAt(ProcessKey(pid, 1), Place("GPU-0", "")),
                WorkloadRef(WorkloadKind.CONTAINER, str(pid)),
                presence=1.0,
                memory_bytes=gib << 30,
                sm_us=percent * 100_000,  # of ten seconds
            )
            for pid, percent, gib in ((1, 60, 24), (2, 20, 6))
        ]
        interval = Interval(3_000_000, 10.0, tuple(parties), held_w=100.0)
        division = EnergyDivider(policy).divide(interval)
        given = [*(division.parts[party.at] for party in parties), division.idle_mj]
        assert [mj / 1000 for mj in given] == told
        assert division.unattributed_mj == 0


# ---------------------------------------------------------------------------- the collector of commands itself


def test_commands_are_taken_apart_by_lines_continuations_and_ands_without_comments() -> None:
    shell_text = "make run   # it\ndocker run \\\n  -v a:b \\\n  x\na b && c # d\n# alone\n\n"
    [shell, plain] = blocks("P.md", f"# T\n\n```sh\n{shell_text}```\n```\nmake no\n```\n")
    assert (shell.language, plain.language) == ("sh", "")
    assert [str(each) for each in commands(shell)] == [
        "P.md:4: make run", "P.md:5: docker run -v a:b x", "P.md:8: a b", "P.md:8: c",
    ]  # fmt: skip


def test_a_command_that_no_rule_knows_is_unknown() -> None:
    assert rule(Command("P.md", 1, "rm -rf build")) is None
    assert rule(Command("P.md", 1, "make run && rm x")) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("otel-gpu doctor --format json | jq .", ["doctor", "--format", "json"]),
        (".venv/bin/otel-gpu metrics > x", ["metrics"]),
        ("kubectl -n otel-gpu exec daemonset/otel-gpu -- otel-gpu doctor", ["doctor"]),
        ("docker run -v a:b otel-gpu", None),
        ("kubectl label namespace otel-gpu x=y", None),
    ],
)
def test_what_otel_gpu_is_told_is_found_wherever_it_runs(text: str, words: list[str] | None) -> None:
    assert Command("P.md", 1, text).of_otel_gpu == words


def test_headings_are_linked_to_as_they_are_shown() -> None:
    page = "# A `b`, c: d\n```\n# no\n```\n## A b c d\n### [X](y) 80%\n"
    assert anchors(page) == {"a-b-c-d", "a-b-c-d-1", "x-80"}


def test_spans_are_found_around_blocks_and_over_lines() -> None:
    assert spans("a `--x\n  y` ``b ` c``\n```\n`no`\n```\n") == ["--x y", "b ` c"]
