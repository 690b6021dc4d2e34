"""Counters across restarts: a journal of cycles and checkpoints of the attribution state, in a private directory."""
