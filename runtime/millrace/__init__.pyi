# General layout, from what a program writes to what runs it (docs/architecture.md has the other packages):
#
#   dsl        StreamsBuilder, streams and tables, windows, and the options of operators
#   topology   Topology, for processors without the DSL, and what a source needs
#   processor  the Processor API
#   state      Stores, for stores that a program adds itself
#   serdes     how keys and values become bytes
#   records    what a record consists of: Record, Headers, Windowed and so on
#   config     settings
#   errors     what is raised: StreamsError is the base of all
#   testing    TopologyTestDriver, which runs a topology in a test
#   instance   KafkaStreams, which runs it with brokers
#
# Less common names are imported from these packages, for example `from millrace.testing import MockProcessorContext`.

from .config import StreamsConfig as StreamsConfig
from .dsl import Branched as Branched
from .dsl import BranchedKStream as BranchedKStream
from .dsl import BufferConfig as BufferConfig
from .dsl import BuiltInDslStoreSuppliers as BuiltInDslStoreSuppliers
from .dsl import Consumed as Consumed
from .dsl import DslKeyValueParams as DslKeyValueParams
from .dsl import DslSessionParams as DslSessionParams
from .dsl import DslStoreSuppliers as DslStoreSuppliers
from .dsl import DslWindowParams as DslWindowParams
from .dsl import EmitStrategy as EmitStrategy
from .dsl import ForeignKeyWithKey as ForeignKeyWithKey
from .dsl import GlobalKTable as GlobalKTable
from .dsl import Grouped as Grouped
from .dsl import Joined as Joined
from .dsl import JoinWindows as JoinWindows
from .dsl import KGroupedStream as KGroupedStream
from .dsl import KStream as KStream
from .dsl import KTable as KTable
from .dsl import Materialized as Materialized
from .dsl import Named as Named
from .dsl import Printed as Printed
from .dsl import Produced as Produced
from .dsl import Repartitioned as Repartitioned
from .dsl import SessionWindows as SessionWindows
from .dsl import SlidingWindows as SlidingWindows
from .dsl import StoreType as StoreType
from .dsl import StreamJoined as StreamJoined
from .dsl import StreamsBuilder as StreamsBuilder
from .dsl import Suppressed as Suppressed
from .dsl import TableJoined as TableJoined
from .dsl import TimeWindows as TimeWindows
from .dsl import UnlimitedWindows as UnlimitedWindows
from .dsl import ValueJoinerWithKey as ValueJoinerWithKey
from .errors import StreamsError as StreamsError
from .instance import KafkaStreams as KafkaStreams
from .instance import run as run
from .processor import FixedKeyProcessor as FixedKeyProcessor
from .processor import Processor as Processor
from .processor import ProcessorContext as ProcessorContext
from .processor import PunctuationType as PunctuationType
from .records import Headers as Headers
from .records import KeyValue as KeyValue
from .records import Record as Record
from .records import TaskId as TaskId
from .records import TopicPartition as TopicPartition
from .records import ValueAndTimestamp as ValueAndTimestamp
from .records import Window as Window
from .records import Windowed as Windowed
from .serdes import Serde as Serde
from .serdes import Serdes as Serdes
from .state import Stores as Stores
from .testing import TopologyTestDriver as TopologyTestDriver
from .topology import AutoOffsetReset as AutoOffsetReset
from .topology import ProcessorWrapper as ProcessorWrapper
from .topology import Topology as Topology

__version__: str
