"""Commands are found in pages, parsed, and checked (tests/docs_commands.py)."""

from __future__ import annotations

import pytest

from tests.docs_commands import Command, anchors, blocks, commands, is_command, is_shell, rule, spans


@pytest.mark.parametrize(
    "text",
    [
        "docker compose -f deploy/compose/compose.yaml up --detatch",
        "docker compose -f deploy/compose/nosuch.yaml up --build -d",
        "docker run --gpuz all otel-gpu frobnicate",
        "docker run --gpus all otel-gpu frobnicate",
        "docker run --rm registry.example/otel-gpu:1 once --format yaml",
        "docker build -t otel-gpu -f NoSuchfile .",
        "kubectl exec train -c otel-gpu -- otel-gpu doctr",
        "kubectl apply -k deploy/kubernetes/nosuch",
        "otel-gpu top --url notaurl",
        "otel-gpu pause --for yesterday",
        "otel-gpu once --format jsn",
        "otel-gpu run --intervall 5s",
        "systemctl frob otel-gpuu",
        "otelcol-contrib --config nosuch.yaml",
        "otelcol-contrib validat --config collector-config/debug.yaml",
        "promtool chek rules",
        "cp deploy/compose/.env.example /nosuch/.env.wrong",
        "oc patch scc otel-gpu --type nonsense",
        "make run && rm x",
        "rm -rf build",
    ],
)
def test_a_wrong_command_is_found(text: str) -> None:
    command = Command("P.md", 1, text)
    assert command.misuse is not None or rule(command) is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("docker run --gpuz all otel-gpu once", "--gpuz is no flag that is in the list"),
        ("docker run --rm otel-gpu frobnicate", "there is no command 'frobnicate'"),
        ("otelcol-contrib --config nosuch.yaml", "there is no nosuch.yaml"),
        ("systemctl frob otel-gpu", "no subcommand that is in the list"),
        ("docker run --user", "--user has no value"),
        ("otel-gpu pause --for yesterday", "--for: 'yesterday'"),
    ],
)
def test_the_error_of_a_command_is_reported(text: str, wrong: str) -> None:
    assert wrong in (Command("P.md", 1, text).misuse or "")


def test_a_block_without_a_language_has_commands_if_a_line_of_it_is_one() -> None:
    page = "```\n# first\notel-gpu topp\n```\n```text\notel-gpu topp\n```\n```\notel-gpu 0.1.0  GPUs\n```\n"
    assert [is_shell(block) for block in blocks("P.md", page)] == [True, False, False]


def test_commands_of_all_programs_are_recognised() -> None:
    recognised = ("docker run --pid=host", "otel-gpu top", ".venv/bin/otel-gpu once", "nvidia-smi -L", "make run")
    assert all(map(is_command, recognised))
    assert not any(map(is_command, ("otel-gpu", "docker", "otel-gpu 0.1.0", "--pid=host", "gpu_state")))


def test_commands_are_split_at_lines_and_ands_and_joined_at_continuations_without_comments() -> None:
    shell_text = "make run   # it\ndocker run \\\n  -v a:b \\\n  x\na b && c # d\n# alone\n\n"
    [shell, plain] = blocks("P.md", f"# T\n\n```sh\n{shell_text}```\n```\nmake no\n```\n")
    assert (shell.language, plain.language) == ("sh", "")
    assert [str(each) for each in commands(shell)] == [
        "P.md:4: make run", "P.md:5: docker run -v a:b x", "P.md:8: a b", "P.md:8: c",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("otel-gpu doctor --format json | jq .", ["doctor", "--format", "json"]),
        (".venv/bin/otel-gpu metrics > x", ["metrics"]),
        ("kubectl -n otel-gpu exec daemonset/otel-gpu -- otel-gpu doctor", ["doctor"]),
        ("docker run -v a:b otel-gpu", None),
        ("docker run --rm … registry.example/otel-gpu:1 once --format json", ["once", "--format", "json"]),
        ("podman run -e A=otel-gpu other once", None),
        ("kubectl exec train -c otel-gpu -- otel-gpu doctor --scope pod", ["doctor", "--scope", "pod"]),
        ("docker compose -f deploy/compose/compose.yaml exec agent otel-gpu doctor", ["doctor"]),
        ("kubectl label namespace otel-gpu x=y", None),
    ],
)
def test_the_arguments_of_otel_gpu_are_found_also_inside_containers(text: str, words: list[str] | None) -> None:
    assert Command("P.md", 1, text).of_otel_gpu == words


def test_headings_are_linked_to_as_they_are_shown() -> None:
    page = "# A `b`, c: d\n```\n# no\n```\n## A b c d\n### [X](y) 80%\n"
    assert anchors(page) == {"a-b-c-d", "a-b-c-d-1", "x-80"}


def test_spans_are_found_around_blocks_and_over_lines() -> None:
    assert spans("a `--x\n  y` ``b ` c``\n```\n`no`\n```\n") == ["--x y", "b ` c"]
