"""Processes, cgroups and the host as ``/proc`` shows them."""
