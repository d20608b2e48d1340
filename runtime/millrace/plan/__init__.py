"""Plans: what a topology needs from a cluster, as plain data, without the engine that runs it or clients that create it."""
