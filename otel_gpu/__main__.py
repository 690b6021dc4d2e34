"""``python -m otel_gpu`` is ``otel-gpu``."""

import sys

from otel_gpu.cli import main

sys.exit(main())
