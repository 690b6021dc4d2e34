"""Series under the names of other exporters, each with that exporter's units and labels. ``exporters`` is the table."""
