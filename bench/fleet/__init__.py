"""A fleet on one machine: many agents, two tiers of real Collectors, a backend that counts."""
