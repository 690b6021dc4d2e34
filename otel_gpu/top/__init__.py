"""``otel-gpu top``: the page in a terminal, of this host or of a running agent."""
