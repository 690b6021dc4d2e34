"""The version, where everybody may import it from."""

__version__ = "0.1.0.dev0"
