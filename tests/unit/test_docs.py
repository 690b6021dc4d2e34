"""The pages tell the truth, as far as text can be checked: commands, flags, variables, metrics, links, figures."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import bcrypt
import pytest
import yaml

from otel_gpu.attribution.energy import Consumer, EnergyDivider, Interval
from otel_gpu.attribution.keys import DeviceKey, ProcessOnDevice
from otel_gpu.attribution.options import EnergyPolicy
from otel_gpu.cli.commands import COMMANDS
from otel_gpu.cli.parser import make_parser
from otel_gpu.compat.families import FAMILIES
from otel_gpu.config import SETTINGS
from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.labels import IDENTITY_KEYS
from otel_gpu.metrics.names import label_name, prometheus_name
from otel_gpu.model import ProcessKey, WorkloadKind, WorkloadRef
from tests.docs_commands import (
    MADE,
    MESSAGES,
    PAGES,
    PLACES,
    ROOT,
    RULES,
    Block,
    Command,
    How,
    Rule,
    all_blocks,
    all_commands,
    anchors,
    blocks,
    commands,
    is_shell,
    links,
    name,
    named_commands,
    rule,
    run_by,
    spans,
)
from tests.picture_sources import IMAGES, MADE_OF, digest
from tools import configuration_page, readme_table

TEXTS: Final = {name(page): page.read_text(encoding="utf-8") for page in PAGES}
by_page = pytest.mark.parametrize("page", TEXTS)

OTHERS_FLAGS: Final = {
    "docker": "cap-add cap-drop cgroupns device gpus group-add health-cmd hostname no-healthcheck pid privileged "
    "read-only rm security-opt tmpfs user uts",
    "kubectl, helm": "all-namespaces as namespace set show-labels",
    "nvidia-smi, systemctl, curl": "gpu-reset query-gpu now unix-socket",
    "exporter-toolkit, container toolkit, Prometheus": "web accounting-mode storage",
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
    parser = make_parser()
    [subcommands] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    parsers = [parser, *subcommands.choices.values()]
    own = {flag for each in parsers for action in each._actions for flag in action.option_strings}
    return own | {f"--{option.name}" for exporter in EXPORTERS.values() for option in exporter.flags}


def own_names() -> set[str]:
    """Metrics and attributes in both spellings, and the metrics of exporters that are stood in for."""
    ours = {metric.name for metric in METRICS}
    keys = {key for metric in METRICS for key in metric.keys} | set(IDENTITY_KEYS)
    theirs = {
        f"{exporter.prefix}{family.name}" for exporter in EXPORTERS.values() for family in FAMILIES[exporter.name]
    }
    return ours | keys | theirs | {prometheus_name(metric) for metric in METRICS} | {label_name(key) for key in keys}


# ---------------------------------------------------------------------------- commands


def test_every_command_has_a_rule() -> None:
    unknown = [str(command) for command in all_commands() if rule(command) is None]
    assert unknown == [], "add a rule to tests/docs_commands.py"


def test_every_rule_matches_a_command() -> None:
    used = {rule(command) for command in all_commands()}
    assert [each.pattern for each in RULES if each not in used] == []


@pytest.mark.parametrize("test", sorted({each.by for each in RULES if each.how is not How.NOT_HERE}))
def test_every_test_named_by_a_rule_exists(test: str) -> None:
    file, _, function = test.partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("each", [each for each in RULES if each.how is How.COVERED], ids=lambda each: each.pattern)
def test_a_test_that_covers_a_command_contains_it(each: Rule) -> None:
    file = each.by.partition("::")[0]
    covering = (ROOT / file).read_text(encoding="utf-8")
    typed = [command.text for command in all_commands() if rule(command) is each]
    assert each.same
    for part in each.same:
        assert part in covering, f"{part} is not what {file} does"
        assert any(part in text for text in typed), f"{part} is in no command"
    assert [text for text in typed if not any(part in text for part in each.same)] == []


def test_every_block_of_shell_has_valid_syntax() -> None:
    shell = "\n".join(block.text for block in all_blocks() if is_shell(block))
    result = subprocess.run(["bash", "-n"], input=shell, capture_output=True, encoding="utf-8", check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("command", sorted({each.text for each in (*all_commands(), *named_commands())}))
def test_no_command_is_misused(command: str) -> None:
    assert Command("", 0, command).misuse is None


def test_the_required_variables_of_compose_are_in_its_example(tmp_path: Path) -> None:
    [command] = run_by("test_the_required_variables_of_compose_are_in_its_example")
    shutil.copytree(ROOT / "deploy/compose", tmp_path / "deploy/compose")
    subprocess.run(["bash", "-c", command.text], cwd=tmp_path, check=True)
    needed = set(re.findall(r"\$\{(\w+):\?", (ROOT / "deploy/compose/compose.yaml").read_text(encoding="utf-8")))
    given = re.findall(r"(?m)^(\w+)=", (tmp_path / "deploy/compose/.env").read_text(encoding="utf-8"))
    assert set(given) == needed != set()


def test_files_of_the_unit_are_installed_where_systemd_and_the_unit_read_them(tmp_path: Path) -> None:
    for command in run_by("test_files_of_the_unit_are_installed_where_systemd_and_the_unit_read_them"):
        subprocess.run(["bash", "-c", command.text.replace(" /etc/", f" {tmp_path}/")], cwd=ROOT, check=True)
    there = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}
    unit = "systemd/system/otel-gpu.service"
    assert there.keys() == {unit, f"{unit}.d/docker.conf", f"{unit}.d/root.conf", "otel-gpu/otel-gpu.env"}
    assert "\nEnvironmentFile=-/etc/otel-gpu/otel-gpu.env\n" in there[unit].read_text(encoding="utf-8")
    assert there["otel-gpu/otel-gpu.env"].stat().st_mode & 0o777 == 0o600, "it may have passwords"


def test_runbooks_become_links_as_a_page_says(tmp_path: Path) -> None:
    [command] = run_by("test_runbooks_become_links_as_a_page_says")
    rules = tmp_path / "alerts.yaml"
    shutil.copy(ROOT / "deploy/prometheus/rules/alerts.yaml", rules)
    subprocess.run(["bash", "-c", command.text.replace("/etc/prometheus/rules/alerts.yaml", str(rules))], check=True)
    groups = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    led_to = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]]
    assert len(led_to) > 10
    assert all(each.startswith("https://wiki.example/otel-gpu/docs/alerts.md#") for each in led_to)


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
    assert named <= COMMANDS.keys()


def test_every_command_is_on_its_page() -> None:
    table = TEXTS["docs/commands.md"].partition("# Commands\n")[2].partition("\n## ")[0]
    named = {
        code.removeprefix("otel-gpu ").split()[0]
        for code in re.findall(r"(?m)^\| (.+?) \|", table)
        for code in spans(code)
    }
    assert COMMANDS.keys() <= named


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
    named = {path for each in text for path in re.findall(PLACES, each)}
    assert [path for path in named - MADE if not list(ROOT.glob(path))] == []


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
def test_generated_parts_are_not_stale(tool: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--check"]) == 0, f"run: python -m {tool.__name__}"  # type: ignore[attr-defined]
    assert capsys.readouterr().out == ""


def test_a_stale_table_is_found_and_only_the_table_is_replaced() -> None:
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
        shown = [int(cell.rpartition("= ")[2].removesuffix(" J")) for cell in cells.split(" | ")]
        consumers = [
            Consumer(
                ProcessOnDevice(ProcessKey(pid, 1), DeviceKey("GPU-0", "")),
                WorkloadRef(WorkloadKind.CONTAINER, str(pid)),
                presence=1.0,
                memory_bytes=gib << 30,
                sm_us=percent * 100_000,  # of ten seconds
            )
            for pid, percent, gib in ((1, 60, 24), (2, 20, 6))
        ]
        interval = Interval(3_000_000, 10.0, consumers, context_power_w=100.0)
        division = EnergyDivider(policy).divide(interval)
        given = [*(division.parts_mj[consumer.at] for consumer in consumers), division.idle_mj]
        assert [mj / 1000 for mj in given] == shown
        assert division.unattributed_mj == 0


def test_the_pictures_are_of_the_page_as_it_is() -> None:
    recorded = (IMAGES / MADE_OF).read_text(encoding="ascii").strip()
    assert recorded == digest(), "stale; update with: make pictures"
