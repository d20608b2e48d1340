"""The physical graph of nodes, and what it needs."""
