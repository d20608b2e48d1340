"""Developing and testing without a cluster: an embedded Kafka, the local host that runs a manifest, pytest fixtures."""
