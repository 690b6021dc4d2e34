"""The cost of the agent, compared with nvitop-exporter on the same world in the same run: ``make bench``."""
