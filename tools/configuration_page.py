"""Generate the table of settings in docs/configuration.md.

python -m tools.configuration_page          write it
python -m tools.configuration_page --check  exit 1 if it is stale
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from otel_gpu.config import SETTINGS

PAGE: Final = Path(__file__).parents[1] / "docs/configuration.md"
_COLUMNS: Final = ("setting", "default", "what it does", "valid values", "variables, by precedence")
_HEADING: Final = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}\n"


def table() -> str:
    """Every setting in the order of declaration."""
    rows = [
        (
            f"`{setting.key}`",
            f"`{setting.default}`" if setting.default else setting.when_empty,
            setting.help,
            setting.type.use,
            ", ".join(f"`{name}`" for name in setting.variables),
        )
        for setting in SETTINGS
    ]
    return _HEADING + "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |\n" for row in rows)


def renewed(page: str) -> str:
    """The page with the current table. Raises ValueError for a page without a table."""
    before, found, rest = page.partition(_HEADING)
    if not found:
        raise ValueError(f"{PAGE.name} has no table that begins with {_HEADING!r}")
    _, _, after = rest.partition("\n\n")
    return f"{before}{table()}\n{after}"


def main(arguments: list[str]) -> int:
    """Write the page, or check whether it is stale."""
    page = PAGE.read_text(encoding="utf-8")
    if arguments == ["--check"]:
        return int(page != renewed(page))
    PAGE.write_text(renewed(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
