"""The factor for the examples of laws: 1 in ``make test``, which has three minutes, and 5 in CI."""

from __future__ import annotations

import os
from typing import Final

DEPTH: Final = int(os.environ.get("OTEL_GPU_TEST_DEPTH", "1"))
