"""``otel-gpu top``: the view model in a terminal, of this host or of a running agent."""
