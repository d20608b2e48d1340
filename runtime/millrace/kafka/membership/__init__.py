"""Group membership: which stream thread of an application works on which partitions.

`member` is the client. The values it exchanges with its stream thread are in `millrace.assignment.protocol`.
"""
