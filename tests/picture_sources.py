"""The sources of the page's screenshots: when they change, the screenshots are out of date."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[1]
IMAGES: Final = REPOSITORY / "docs/images"
MADE_OF: Final = "made-of.txt"
_SOURCES: Final = (
    "otel_gpu/web/static/*",
    "otel_gpu/view/*.py",
    "otel_gpu/sources/sim/demo.py",
    "tests/real/pictures.py",
)


def digest() -> str:
    """The digest of the page's files, the demo, and the program that takes the screenshots."""
    found = sha256()
    for pattern in _SOURCES:
        for path in sorted(REPOSITORY.glob(pattern)):
            found.update(f"{path.relative_to(REPOSITORY)} {sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()
