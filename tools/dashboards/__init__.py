"""Grafana dashboards, declared as data. ``python -m tools.dashboards`` writes them; ``make dashboards`` runs that."""
