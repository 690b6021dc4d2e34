"""Slurm: names and GPUs of jobs, from their cgroups and the environment of their processes. No daemon is queried."""
