"""Name sources: which container, pod or job a workload is, and which GPUs it was granted.

``candidates`` finds the sources of a host and decides which are used, ``factory`` opens them, ``discovery`` repeats
that while the agent runs. Each source polls on a thread of its own (``poller``). ``resolver`` merges their answers.
"""
