"""The Kafka clients: data plane, group membership, administration."""
