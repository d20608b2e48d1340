"""The operator's resources as models: the content of manifests, the problems in one, and the settings it stands for."""

from millrace.manifest.loader import KINDS, check, load, load_all
from millrace.manifest.problems import Problem
from millrace.manifest.resource import API_VERSION, GROUP, VERSION, Resource
from millrace.manifest.settings import replica_name, to_group_settings, to_streams_config
from millrace.manifest.streamsapp import StreamsApp, StreamsAppSpec
from millrace.manifest.streamsapp_status import Condition, StreamsAppStatus
from millrace.manifest.streamsbackfill import StreamsBackfill, StreamsBackfillSpec, StreamsBackfillStatus
from millrace.manifest.streamsreset import StreamsReset, StreamsResetSpec, StreamsResetStatus

__all__ = [
    "API_VERSION",
    "GROUP",
    "KINDS",
    "VERSION",
    "Condition",
    "Problem",
    "Resource",
    "StreamsApp",
    "StreamsAppSpec",
    "StreamsAppStatus",
    "StreamsBackfill",
    "StreamsBackfillSpec",
    "StreamsBackfillStatus",
    "StreamsReset",
    "StreamsResetSpec",
    "StreamsResetStatus",
    "check",
    "load",
    "load_all",
    "replica_name",
    "to_group_settings",
    "to_streams_config",
]
