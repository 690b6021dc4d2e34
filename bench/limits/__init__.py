"""What one agent holds: processes, series, scrapers and events of an engine, on a simulated host."""
