"""Sources read the host. They apply no rules and never raise."""
