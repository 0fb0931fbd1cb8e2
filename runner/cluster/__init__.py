"""The Ray cluster: connecting to it, what its nodes have, and whether that is enough."""
