"""The view model: rows, colours, states, reasons, units and texts, decided once for the page, ``top`` and the table."""
