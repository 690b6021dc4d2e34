"""Hostile processes: unprivileged users that try to keep the agent from reading, or to change figures of others."""
