"""How far laws are tried: once in ``make test``, which has three minutes for everything, five times as far in CI."""

from __future__ import annotations

import os
from typing import Final

DEPTH: Final = int(os.environ.get("OTEL_GPU_TEST_DEPTH", "1"))
