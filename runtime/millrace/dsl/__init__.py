"""What users write: streams, tables, windows and joins, compiled to a physical topology.

Modules import each other in one direction: `abstract_stream`, `grouped_table`, `ktable`, `stream_aggregation`, `windowed_stream`,
`cogrouped_stream`, `grouped_stream`, `kstream`. But operators are chained, so the classes name each other as what public methods
take and return: `KTable.to_stream` returns a `KStream`. Five imports that only type checkers see go the other way for this.

None of the ways around these is better to read. One module for all these classes would have 1,600 lines, most of them docstrings
and overloads. A class above the others could declare each operator again, with what it returns: two places for each. And if base
classes were returned, type checkers would know no operator of the result.
"""

from millrace.dsl.branched_stream import Branched, BranchedKStream
from millrace.dsl.global_table import GlobalKTable
from millrace.dsl.grouped_stream import KGroupedStream
from millrace.dsl.kstream import KStream
from millrace.dsl.ktable import KTable
from millrace.dsl.options.consumed import Consumed
from millrace.dsl.options.grouped import Grouped, Repartitioned
from millrace.dsl.options.joined import ForeignKeyWithKey, Joined, StreamJoined, TableJoined, ValueJoinerWithKey
from millrace.dsl.options.materialized import Materialized
from millrace.dsl.options.named import Named
from millrace.dsl.options.produced import Printed, Produced
from millrace.dsl.options.suppressed import BufferConfig, Suppressed
from millrace.dsl.store_suppliers import (
    BuiltInDslStoreSuppliers,
    DslKeyValueParams,
    DslSessionParams,
    DslStoreSuppliers,
    DslWindowParams,
    StoreType,
)
from millrace.dsl.streams_builder import StreamsBuilder
from millrace.dsl.windows import (
    EmitStrategy,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
)

__all__ = [
    "Branched",
    "BranchedKStream",
    "BufferConfig",
    "BuiltInDslStoreSuppliers",
    "Consumed",
    "DslKeyValueParams",
    "DslSessionParams",
    "DslStoreSuppliers",
    "DslWindowParams",
    "EmitStrategy",
    "ForeignKeyWithKey",
    "GlobalKTable",
    "Grouped",
    "JoinWindows",
    "Joined",
    "KGroupedStream",
    "KStream",
    "KTable",
    "Materialized",
    "Named",
    "Printed",
    "Produced",
    "Repartitioned",
    "SessionWindows",
    "SlidingWindows",
    "StoreType",
    "StreamJoined",
    "StreamsBuilder",
    "Suppressed",
    "TableJoined",
    "TimeWindows",
    "UnlimitedWindows",
    "ValueJoinerWithKey",
]
