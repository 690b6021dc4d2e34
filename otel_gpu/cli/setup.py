"""``otel-gpu setup``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from otel_gpu.cli.logs import show_progress
from otel_gpu.cli.stdio import write
from otel_gpu.config import Config
from otel_gpu.errors import UsageError
from otel_gpu.sources.nvml.accounting import GpuAccounting, Mode, accounting, is_done
from otel_gpu.sources.nvml.api import NvmlApi
from otel_gpu.view.terminal import cells, pad, printable

_DONE: Final = 0
_FAILED: Final = 1


def list_setups(setups: Mapping[str, str], *, off: bool) -> int:
    """Print what can be set up, with its meaning. UsageError for ``--off`` without one of them."""
    if off:
        raise UsageError(f"--off needs what to switch off: otel-gpu setup {'|'.join(setups)} --off")
    for what, meaning in setups.items():
        write(sys.stdout, f"{what}  {meaning}\n")
    return _DONE


def setup_accounting(config: Config, *, off: bool) -> int:
    """Switch accounting on, or off, on every GPU, and print the result for each."""
    wanted = Mode.OFF if off else Mode.ON
    with show_progress("setting accounting"):
        gpus = accounting(NvmlApi(), deadline_s=config.sampling.deadline_s, wanted=wanted)
    write(sys.stdout, describe(gpus, wanted))
    return _DONE if is_done(gpus, wanted) else _FAILED


def describe(gpus: Sequence[GpuAccounting], wanted: Mode) -> str:
    """One line for each GPU: its index, its name, and its accounting mode."""
    names = [printable(gpu.name) for gpu in gpus]
    index_width = max(len(str(gpu.index)) for gpu in gpus)
    name_width = max(map(cells, names))
    return "".join(
        f"GPU {gpu.index:<{index_width}}  {pad(name, name_width)}  {printable(_result(gpu, wanted))}\n"
        for gpu, name in zip(gpus, names, strict=True)
    )


def _result(gpu: GpuAccounting, wanted: Mode) -> str:
    if gpu.mode is Mode.UNSUPPORTED:
        return f"accounting {gpu.reason}"
    if gpu.mode is not wanted:
        return f"accounting is {'unknown' if gpu.mode is Mode.UNKNOWN else f'still {gpu.mode}'}: {gpu.reason}"
    result = f"accounting is {gpu.mode} now" if gpu.changed else f"accounting was {gpu.mode} already"
    if gpu.is_lost_on_unload:
        result += (
            "; persistence mode is off, so it is lost when the driver unloads; "
            f"to keep it, as root: nvidia-smi -i {gpu.index} -pm 1"
        )
    return result
