"""What the pictures of the page are made of: when it changes, they have to be taken again."""

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
    """Of the page's files, the demo, and how the pictures are taken."""
    found = sha256()
    for pattern in _SOURCES:
        for path in sorted(REPOSITORY.glob(pattern)):
            found.update(f"{path.relative_to(REPOSITORY)} {sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()
