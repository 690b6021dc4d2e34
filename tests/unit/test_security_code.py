"""The package does not run programs, does not evaluate text, and does not unpickle untrusted objects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_gpu

PACKAGE = Path(otel_gpu.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

FORBIDDEN_MODULES = {
    "subprocess",
    "multiprocessing",
    "pty",
    "pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "runpy",
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
FORBIDDEN_ATTRIBUTES = {
    "os": {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "yaml": {"load", "load_all", "unsafe_load", "full_load", "Loader", "UnsafeLoader", "FullLoader"},
    "ssl": {"_create_unverified_context"},
    "tempfile": {"mktemp"},
}
REPLACES_ITSELF = "control/restart.py"
"""The one module that may exec: this very program, as it was started, after the driver's library was replaced."""


def violations(source: str, name: str = "") -> Iterator[str]:
    """What is forbidden in a module, each with its line."""
    for node in ast.walk(ast.parse(source)):
        for what in _used(node):
            module, _, attribute = what.rpartition(".")
            forbidden = (
                what.partition(".")[0] in FORBIDDEN_MODULES
                or what in FORBIDDEN_CALLS
                or attribute in FORBIDDEN_ATTRIBUTES.get(module, ())
                or (module == "os" and attribute.startswith(("exec", "spawn")) and name != REPLACES_ITSELF)
            )
            if forbidden:
                yield f"{name}:{getattr(node, 'lineno', 0)}: {what}"


def _used(node: ast.AST) -> Iterator[str]:
    """What a node takes into use: modules, their attributes, functions by their name, and ``shell=``."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names):
            yield from (f"{module}.{alias.name}" for alias in names)
        case ast.Call(func=ast.Name(id=function)):
            yield function
        case ast.Attribute(value=ast.Name(id=module), attr=attribute):
            yield f"{module}.{attribute}"
        case ast.keyword(arg="shell"):
            yield "subprocess"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_runs_no_program_no_text_and_unpacks_no_objects(module: str) -> None:
    if module.endswith("_pb2.py"):  # made by protoc, which has a loader of its own
        return
    assert list(violations((PACKAGE / module).read_text(encoding="utf-8"), module)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess",
        "from subprocess import run",
        "import multiprocessing.pool",
        "import pickle",
        "from marshal import loads",
        "import os\nos.system('x')",
        "import os\nos.execv('/bin/sh', [])",
        "from os import execvp",
        "from os import popen",
        "import os\nos.spawnl(0, '')",
        "eval('1')",
        "exec('x = 1')",
        "import yaml\nyaml.load('', Loader=yaml.SafeLoader)",
        "run('x', shell=True)",
    ],
)
def test_forbidden_code_is_found(source: str) -> None:
    assert list(violations(source, "x.py"))


def test_a_restart_executes_only_the_original_command_line() -> None:
    """``os.execve`` of Python itself, with the words this process was started with."""
    tree = ast.parse((PACKAGE / REPLACES_ITSELF).read_text(encoding="utf-8"))
    (call,) = (
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("os.exec")
    )
    assert ast.unparse(call.args[0]) == "sys.executable"
