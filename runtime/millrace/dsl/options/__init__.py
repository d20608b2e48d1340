"""Option objects of the operators. All are frozen: `with_*` methods return a changed copy, and so do keywords at construction."""

from millrace.dsl.options.consumed import Consumed
from millrace.dsl.options.grouped import Grouped, Repartitioned
from millrace.dsl.options.joined import Joined, StreamJoined, TableJoined
from millrace.dsl.options.materialized import Materialized
from millrace.dsl.options.named import Named
from millrace.dsl.options.produced import Printed, Produced
from millrace.dsl.options.suppressed import BufferConfig, Suppressed
from millrace.dsl.store_suppliers import StoreType

__all__ = [
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
