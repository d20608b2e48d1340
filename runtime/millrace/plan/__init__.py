"""Plans: what a topology needs of a cluster as plain data, without the engine that runs it and the clients that create it."""
