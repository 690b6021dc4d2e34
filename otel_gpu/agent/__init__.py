"""The agent: services and their lifecycle, sources and exporters wired together, the same inside another service."""
