"""Report devices that have not been heard of for a minute.

Nothing arrives when a device falls silent, so no record can lead to the report: a punctuator has to. The processor keeps in a
store when it last heard of each device, and looks through the store every ten seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace import (
    Consumed,
    Processor,
    ProcessorContext,
    Produced,
    PunctuationType,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
)
from millrace.state import KeyValueStore, StoreBuilder

LAST_SEEN = "last-seen"
CHECK_MS = 10_000
SILENT_MS = 60_000


class Watch(Processor[str, str, str, str]):
    """Remembers when each device was last heard of; forwards `silent` once, and `back` when it is heard of again."""

    @staticmethod
    def stores() -> Iterable[StoreBuilder]:
        """Return the builders of the stores that every task needs."""
        return [
            Stores.key_value_store_builder(Stores.persistent_key_value_store(LAST_SEEN), Serdes.string(), Serdes.long())
        ]

    def init(self, context: ProcessorContext[str, str]) -> None:
        """Get the store, and start the clock."""
        super().init(context)
        self._seen: KeyValueStore[str, int] = context.get_state_store(LAST_SEEN)
        context.schedule(CHECK_MS, PunctuationType.WALL_CLOCK_TIME, self._report)

    def process(self, record: Record[str, str]) -> None:
        """Note that a device was heard of."""
        if self._seen.get(record.key) == -1:
            self.context.forward(record.with_value("back"))
        self._seen.put(record.key, self.context.current_system_time_ms())

    def _report(self, now_ms: int) -> None:
        for device, last in list(self._seen.all()):
            if last != -1 and now_ms - last >= SILENT_MS:
                self.context.forward(Record(device, "silent", now_ms))
                self._seen.put(device, -1)  # reported


def topology(builder: StreamsBuilder) -> None:
    """Build the topology."""
    text = Serdes.string()
    (
        builder.stream("heartbeats", Consumed.with_(text, text))
        .process(Watch, named="watch")
        .to("reports", Produced.with_(text, text))
    )
