"""Global stores are only read by processors that do not fill them, as in Kafka Streams."""

from __future__ import annotations

import pytest

from millrace.errors import FailedProcessingError, InvalidStateStoreError
from millrace.processor.api import Processor
from millrace.processor.handlers import HandlerResponse
from millrace.records import ValueAndTimestamp, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import AggregationWithHeaders, Stores, ValueTimestampHeaders
from millrace.testing import TopologyTestDriver
from millrace.topology import Topology

TEXT = Serdes.string()
CONFIG = {"application.id": "app", "default.key.serde": TEXT, "default.value.serde": TEXT}
DAY = 86_400_000
SESSION = Windowed("a", Window(0, 5))

KEY_VALUE = Stores.in_memory_key_value_store("gs")
WINDOWS = Stores.in_memory_window_store("gs", DAY, 10)
STORES = {
    "key-value": (Stores.key_value_store_builder(KEY_VALUE, TEXT, TEXT), ("a", "1")),
    "lru": (Stores.key_value_store_builder(Stores.lru_map("gs", 5), TEXT, TEXT), ("a", "1")),
    "timestamped": (
        Stores.timestamped_key_value_store_builder(KEY_VALUE, TEXT, TEXT),
        ("a", ValueAndTimestamp("1", 7)),
    ),
    "with headers": (
        Stores.timestamped_key_value_store_with_headers_builder(
            Stores.persistent_timestamped_key_value_store_with_headers("gs"), TEXT, TEXT
        ),
        ("a", ValueTimestampHeaders("1", 7)),
    ),
    "versioned": (
        Stores.versioned_key_value_store_builder(Stores.persistent_versioned_key_value_store("gs", DAY), TEXT, TEXT),
        ("a", "1", 7),
    ),
    "window": (Stores.window_store_builder(WINDOWS, TEXT, TEXT), ("a", "1", 0)),
    "timestamped window": (
        Stores.timestamped_window_store_builder(WINDOWS, TEXT, TEXT),
        ("a", ValueAndTimestamp("1", 7), 0),
    ),
    "window with headers": (
        Stores.timestamped_window_store_with_headers_builder(
            Stores.persistent_timestamped_window_store_with_headers("gs", DAY, 10), TEXT, TEXT
        ),
        ("a", ValueTimestampHeaders("1", 7), 0),
    ),
    "session": (
        Stores.session_store_builder(Stores.in_memory_session_store("gs", DAY), TEXT, TEXT),
        (SESSION, "1"),
    ),
    "session with headers": (
        Stores.session_store_with_headers_builder(Stores.persistent_session_store_with_headers("gs", DAY), TEXT, TEXT),
        (SESSION, AggregationWithHeaders("1")),
    ),
}
READS = frozenset(
    [
        "all",
        "approximate_num_entries",
        "backward_all",
        "backward_fetch",
        "backward_fetch_all",
        "backward_fetch_keys",
        "backward_find_sessions",
        "backward_find_sessions_of_keys",
        "committed_offset",
        "fetch",
        "fetch_all",
        "fetch_keys",
        "fetch_session",
        "find_sessions",
        "find_sessions_ended",
        "find_sessions_of_keys",
        "get",
        "get_versions",
        "is_open",
        "prefix_scan",
        "range",
        "reverse_all",
        "reverse_range",
        "uncommitted_bytes",
    ]
)


class Use(Processor):
    """Runs the test's code with the global store."""

    def __init__(self, use):
        self.use = use

    def process(self, record):
        """Run it."""
        self.use(self.context.get_state_store("gs"))


def driver_with(builder, entry, use, **settings):
    """Return a driver whose processor uses a global store that has one entry."""
    topology = (
        Topology()
        .add_global_store(
            builder.with_logging_disabled(), "gsrc", "g", "gproc", lambda: Use(lambda store: store.put(*entry))
        )
        .add_source("src", "in")
        .add_processor("use", lambda: Use(use), "src")
    )
    driver = TopologyTestDriver(topology, CONFIG | {key.replace("_", "."): value for key, value in settings.items()})
    driver.create_input_topic("g").pipe_input("any", "any")
    return driver


@pytest.mark.parametrize("kind", STORES)
def test_nothing_but_reads_of_a_global_store(kind):
    """Every method of a store is one of those that only read, or is refused; so a method that is added has to be sorted."""
    builder, entry = STORES[kind]
    refused, reads = [], []

    def use(store):
        raw = driver.get_state_store("gs")
        assert isinstance(store, type(raw))
        for name in (name for name in dir(type(raw)) if not name.startswith("_") and callable(getattr(raw, name))):
            if name in READS:
                assert getattr(store, name) == getattr(raw, name)
                reads.append(name)
                continue
            with pytest.raises(InvalidStateStoreError, match="'gs' is global, and read only"):
                store.direct().put(*entry) if name == "direct" else getattr(store, name)(*entry)
            refused.append(name)

    with driver_with(builder, entry, use) as driver:
        driver.create_input_topic("in").pipe_input("a", "b")
    assert {"put", "close", "commit", "restore"} <= set(refused)
    assert {"get", "fetch"} & set(reads)


def test_write_to_a_global_store_is_the_records_failure():
    """The processing exception handler is asked; if it skips the record, the store has what it had before."""

    class Resume:
        def handle_error(self, context, record, error):
            errors.append(error)
            return HandlerResponse.resume()

    errors: list[Exception] = []
    builder, entry = STORES["key-value"]
    options = {"processing_exception_handler": Resume()}
    with driver_with(builder, entry, lambda store: store.put("z", "1"), **options) as driver:
        driver.create_input_topic("in").pipe_input("a", "b")
        assert [pair.key for pair in driver.get_state_store("gs").all()] == ["a"]
    assert isinstance(errors[0], InvalidStateStoreError)
    with driver_with(builder, entry, lambda store: store.delete("a")) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(FailedProcessingError, match=r"node use failed .* only the processor that fills it"):
            topic.pipe_input("a", "b")
        assert driver.get_state_store("gs").get("a") == "1"
        driver.abandon()
