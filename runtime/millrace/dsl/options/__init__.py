"""Option objects of the operators. All are frozen: `with_*` methods return a changed copy, and so do keywords at construction."""

from millrace.dsl.options.grouping import Grouped, Materialized, StoreType
from millrace.dsl.options.joining import Joined, StreamJoined, TableJoined
from millrace.dsl.options.naming import Named
from millrace.dsl.options.splitting import Branched, Printed
from millrace.dsl.options.suppressing import BufferConfig, Suppressed
from millrace.dsl.options.topics import Consumed, Produced, Repartitioned

__all__ = [
    "Branched",
    "BufferConfig",
    "Consumed",
    "Grouped",
    "Joined",
    "Materialized",
    "Named",
    "Printed",
    "Produced",
    "Repartitioned",
    "StoreType",
    "StreamJoined",
    "Suppressed",
    "TableJoined",
]
