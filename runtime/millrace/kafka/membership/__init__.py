"""Group membership: which stream thread of an application works on which partitions.

`classic` and `streams` have a `member` each, for the two group protocols; the other modules serve both. The values that a member
exchanges with its stream thread are in `millrace.assignment.protocol`.
"""
