"""``python -m tests.real.run_with_capabilities UID CAPS ARG…`` runs ``otel-gpu ARG…`` with these capabilities only.

It imports all modules first, because that user may be unable to read them (a Python in root's home). Then it drops
groups, root and the bounding set, and the right to gain privileges.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pkgutil
import sys
from typing import Final

import otel_gpu
from otel_gpu import cli

NUMBERS: Final = {"CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2, "CAP_SYS_PTRACE": 19}  # linux/capability.h
_PR_SET_KEEPCAPS, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 8, 23, 24, 38  # linux/prctl.h
_VERSION_3: Final = 0x20080522
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def import_all() -> None:
    """Import every module of the agent, and the codecs that Python imports at first use."""
    for module in pkgutil.walk_packages(otel_gpu.__path__, "otel_gpu."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for codec in ("ascii", "idna", "latin_1"):
        importlib.import_module(f"encodings.{codec}")


def drop_privileges(uid: int, capabilities: list[str]) -> None:
    """Become this user with these capabilities, and without a way to gain others."""
    mask = sum(1 << NUMBERS[name] for name in capabilities)
    for number in range(64):
        if _LIBC.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1 and not mask >> number & 1:
            _check(_LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    _check(_LIBC.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    data = (_Data * 2)(_Data(mask & 0xFFFFFFFF, mask & 0xFFFFFFFF, 0), _Data(0, 0, 0))
    _check(_LIBC.capset(ctypes.byref(_Header(_VERSION_3, 0)), data))
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _check(code: int) -> None:
    if code != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(arguments: list[str]) -> int:
    """Run a command; returns its exit code."""
    uid, capabilities, *words = arguments
    import_all()
    if "LD_LIBRARY_PATH" in os.environ:
        ctypes.CDLL("libnvidia-ml.so.1")  # from now on the loader finds it by its name
    drop_privileges(int(uid), [name for name in capabilities.split(",") if name])
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
