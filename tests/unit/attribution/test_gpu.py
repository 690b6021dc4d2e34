"""One GPU from cycle to cycle: figures that cannot be true."""

from __future__ import annotations

from dataclasses import replace

from otel_gpu.attribution.gpu import implausible_figures
from tests.builders import GIB, gpu, listed, memory, mig


def test_implausible_figures_are_counted() -> None:
    odd = gpu(0, [listed(1, 100 * GIB), listed(1)], memory=memory(used_gib=100), energy_mj=-1, power_w=float("nan"))
    assert implausible_figures(odd) == 5
    assert implausible_figures(replace(odd, energy_mj=1)) == 4
    assert implausible_figures(replace(odd, processes=(listed(1),))) == 3
    assert implausible_figures(gpu(0, [listed(1)], memory=memory(), energy_mj=1, power_w=0.0)) == 0
    assert implausible_figures(gpu(0, None, mig=[mig("MIG-1", (1, 0), [listed(1, -1)])])) == 1
