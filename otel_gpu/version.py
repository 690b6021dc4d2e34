"""The package version, importable from any module without a cycle."""

__version__ = "0.1.0.dev0"
