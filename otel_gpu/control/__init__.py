"""What a running agent can be told by its owner, over a socket of its own: to pause, and to go on."""
