"""How far attribution is from the truth of a simulated host, beside the formulas in use today.

``python -m bench.accuracy`` plays every kind of world in ``worlds`` (10 simulated minutes, a poll every 5 s, hold-out
seeds), scores what the agent and what other exporters' formulas say of it, and judges the result by ``targets``.
"""
