"""Errors of a cluster, in words for the person who wants to run the tests."""


class ClusterError(Exception):
    """The cluster cannot be built, started or reached; the message says what to do."""
