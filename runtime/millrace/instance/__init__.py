"""An application instance on real brokers: threads, tasks, transactions, restoration, the state directory."""

from millrace.instance.instrumentation import Instrumentation
from millrace.instance.kafka_streams import KafkaStreams
from millrace.instance.metadata import LagInfo, StreamsMetadata, TaskMetadata, ThreadMetadata
from millrace.instance.process import run
from millrace.instance.states import State, StateListener, ThreadState, UncaughtExceptionResponse
from millrace.instance.task_restoration import RestoreListener, StandbyUpdateListener, SuspendReason
from millrace.instance_status import StreamsStatus

__all__ = [
    "Instrumentation",
    "KafkaStreams",
    "LagInfo",
    "RestoreListener",
    "StandbyUpdateListener",
    "State",
    "StateListener",
    "StreamsMetadata",
    "StreamsStatus",
    "SuspendReason",
    "TaskMetadata",
    "ThreadMetadata",
    "ThreadState",
    "UncaughtExceptionResponse",
    "run",
]
