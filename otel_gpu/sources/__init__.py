"""Readers of the world outside. They hold no policy: they read, parse and say how it went."""
