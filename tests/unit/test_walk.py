"""What ``make walk`` counts."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from types import ModuleType

import pytest

from tools.walk import Function, Recorder, functions, summary

SOURCE = """
class Thing:
    def __init__(self):
        self.parts = [part for part in range(2)]

    def run(self):
        (lambda: None)()
        return sum(each for each in self.parts)

def on_a_thread():
    class Inner:
        pass

def before():
    pass

def never():
    pass
"""


@pytest.fixture
def tiny(tmp_path: Path) -> ModuleType:
    """A package's module with a few functions."""
    path = tmp_path / "tiny" / "inner" / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_named_functions_that_run_while_recorded_are_counted_once_in_every_thread(
    tiny: ModuleType, tmp_path: Path
) -> None:
    recorder = Recorder()
    recorder.install()
    tiny.before()
    recorder.start()
    for _ in range(2):
        tiny.Thing().run()
    thread = threading.Thread(target=tiny.on_a_thread)
    thread.start()
    thread.join()
    codes = recorder.stop()
    tiny.never()
    found = functions(codes, tmp_path / "tiny")
    assert [function.name for function in found] == ["Thing.__init__", "Thing.run", "on_a_thread"]
    assert {(function.file, function.package) for function in found} == {("inner/module.py", "inner")}
    assert functions(codes, tmp_path / "other") == []


def test_functions_and_modules_are_counted_by_package_and_in_total() -> None:
    found = [
        Function("a/one.py", "f", 1),
        Function("a/one.py", "g", 9),
        Function("a/b/two.py", "f", 1),
        Function("cli.py", "main", 3),
    ]
    assert [line.split() for line in summary(found)] == [
        ["package", "functions", "modules"],
        ["a", "3", "2"],
        ["(top", "level)", "1", "1"],
        ["total", "4", "3"],
    ]
