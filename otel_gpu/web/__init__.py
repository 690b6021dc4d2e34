"""The HTTP server of the agent: the page, the JSON document, the event stream, /metrics and the health endpoints."""
