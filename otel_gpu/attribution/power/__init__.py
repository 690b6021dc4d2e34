"""Power of a GPU without work, and watts per unit of SM share of each process."""

from otel_gpu.attribution.power.baseline import Baseline, BaselineEstimate, Origin
from otel_gpu.attribution.power.learned import LearnedPower

__all__ = ["Baseline", "BaselineEstimate", "LearnedPower", "Origin"]
