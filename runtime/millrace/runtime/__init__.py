"""An application instance on real brokers: threads, tasks, transactions, restoration, the state directory."""

from millrace.runtime.instrumentation import Instrumentation
from millrace.runtime.kafka_streams import KafkaStreams
from millrace.runtime.metadata import LagInfo, TaskMetadata, ThreadMetadata
from millrace.runtime.restoration import RestoreListener
from millrace.runtime.run import run
from millrace.runtime.states import State, StateListener, ThreadState, UncaughtExceptionResponse
from millrace.runtime.status import StreamsStatus

__all__ = [
    "Instrumentation",
    "KafkaStreams",
    "LagInfo",
    "RestoreListener",
    "State",
    "StateListener",
    "StreamsStatus",
    "TaskMetadata",
    "ThreadMetadata",
    "ThreadState",
    "UncaughtExceptionResponse",
    "run",
]
