"""The accuracy page must have the figures of a run, or the run fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.accuracy.__main__ import main

RUN = ("--family", "steady, alone, 0 %", "--seeds", "1", "--workers", "1", "--no-gate")
PAGE = "# Page\n\n<!-- made: figures -->\n\nold\n\n<!-- end -->\n\nThe end.\n"


def test_a_page_with_other_figures_fails_until_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    assert main([*RUN, "--page", str(page)]) == 1
    assert f"{page} has other figures: python -m bench.accuracy --page {page} --write" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8") == PAGE
    assert main([*RUN, "--page", str(page), "--write"]) == 0
    written = page.read_text(encoding="utf-8")
    assert written.startswith("# Page\n\n<!-- made: figures -->\n\n**")
    assert written.endswith(" targets reached\n\n<!-- end -->\n\nThe end.\n")
    assert main([*RUN, "--page", str(page)]) == 0
