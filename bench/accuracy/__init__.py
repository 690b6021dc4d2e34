"""Error of attribution against the known truth of a simulated host, compared with formulas in use today.

``python -m bench.accuracy`` plays every kind of world in ``worlds`` (10 simulated minutes, a poll every 5 s, hold-out
seeds), scores the agent and other exporters' formulas, and compares the result with ``targets``.
"""
