"""What the agent costs, beside nvitop-exporter on the same world in the same run: ``make bench``."""
