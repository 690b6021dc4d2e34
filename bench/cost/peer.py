"""Runs nvitop-exporter on another ``/proc``: its own interpreter starts this file, with that directory first."""

from __future__ import annotations

import runpy
import sys

import psutil

psutil.PROCFS_PATH = sys.argv.pop(1)
runpy.run_module("nvitop_exporter", run_name="__main__")
