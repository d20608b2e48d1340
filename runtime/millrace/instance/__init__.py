"""An application instance on real brokers: threads, tasks, transactions, restoration, the state directory."""

from millrace.instance.instrumentation import Instrumentation
from millrace.instance.kafka_streams import KafkaStreams
from millrace.instance.metadata import LagInfo, TaskMetadata, ThreadMetadata
from millrace.instance.restoration import RestoreListener
from millrace.instance.run import run
from millrace.instance.states import State, StateListener, ThreadState, UncaughtExceptionResponse
from millrace.instance.status import StreamsStatus

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
