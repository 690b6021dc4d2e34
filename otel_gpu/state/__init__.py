"""What outlives the agent: the cycles it has shown and the books they led to, in a directory of its own."""
