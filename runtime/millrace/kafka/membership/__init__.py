"""Group membership: which stream thread of an application works on which partitions.

`member` is the client; `api` holds the values it exchanges with its stream thread and needs no Kafka client itself.
"""
