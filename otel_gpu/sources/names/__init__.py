"""Name sources: which container, pod or job a workload is, and which GPUs it was granted.

A module or package for each runtime and scheduler: ``docker`` (and Podman), ``cri``, ``podresources``, ``kubernetes``,
``slurm``. Each polls on a thread of its own (``poller``). ``candidates`` finds the sources of a host and decides which
are used, ``factory`` opens them, ``discovery`` repeats that while the agent runs. ``resolver`` merges their answers.
"""
