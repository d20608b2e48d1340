"""The resources of the operator as models: what a manifest may say, what is wrong with one, and what it means to the runtime."""

from millrace.manifest.loader import check, load, load_all
from millrace.manifest.problems import Problem
from millrace.manifest.settings import replica_name, to_streams_config
from millrace.manifest.streamsapp import API_VERSION, StreamsApp, StreamsAppSpec

__all__ = [
    "API_VERSION",
    "Problem",
    "StreamsApp",
    "StreamsAppSpec",
    "check",
    "load",
    "load_all",
    "replica_name",
    "to_streams_config",
]
