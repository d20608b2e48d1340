"""What operators accept: Java's order of arguments, durations of any form, functions of any kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from functools import partial, singledispatchmethod, wraps
from pathlib import PurePath
from unittest import mock

import pytest
from tests.dsl.mistakes import (
    SETTINGS,
    STORE,
    TEXT,
    Parts,
    Upper,
    identity,
    join,
    store_of_texts,
)

from millrace import (
    AutoOffsetReset,
    BufferConfig,
    Consumed,
    Joined,
    JoinWindows,
    Materialized,
    Named,
    Printed,
    Processor,
    PunctuationType,
    Repartitioned,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TableJoined,
    TimeWindows,
    Topology,
    TopologyTestDriver,
    UnlimitedWindows,
)
from millrace.errors import TopologyError

JAVA = {
    "table": lambda b: b.table("t", Consumed.with_(TEXT, TEXT), Materialized.as_("s")).to_stream().to("out"),
    "global table": lambda b: b.stream("in").join(
        b.global_table("t", Consumed.with_(TEXT, TEXT), Materialized.as_("s")),
        join,
        key_selector=lambda key, value: key,
    ),
    "global store": lambda b: b.add_global_store(
        Stores.key_value_store_builder(STORE, TEXT, TEXT).with_logging_disabled(), "t", Consumed.as_("c"), Upper
    ),
    "foreign key": lambda b: b.table("l").join(
        b.table("r"), identity, join, TableJoined.as_("j"), Materialized.as_("s")
    ),
    "foreign key, left": lambda b: b.table("l").left_join(b.table("r"), identity, join, Materialized.as_("s")),
    "join with a global table": lambda b: b.stream("in").join(
        b.global_table("t"), lambda key, value: value, join, Named.as_("j")
    ),
    "left join with a global table": lambda b: b.stream("in").left_join(
        b.global_table("t"), lambda key, value: value, join
    ),
    "join with a table": lambda b: b.stream("in").join(b.table("t"), join, Joined.as_("j")),
    "processor": lambda b: b.add_state_store(store_of_texts()).stream("in").process(Upper, Named.as_("p"), "store"),
}
HERE = {
    "table": lambda b: b.table("t", Materialized.as_("s"), consumed=Consumed.with_(TEXT, TEXT)).to_stream().to("out"),
    "global table": lambda b: b.stream("in").join(
        b.global_table("t", Materialized.as_("s"), consumed=Consumed.with_(TEXT, TEXT)),
        join,
        key_selector=lambda key, value: key,
    ),
    "global store": lambda b: b.add_global_store(
        Stores.key_value_store_builder(STORE, TEXT, TEXT).with_logging_disabled(), "t", Upper, Consumed.as_("c")
    ),
    "foreign key": lambda b: b.table("l").join(
        b.table("r"), join, Materialized.as_("s"), foreign_key=identity, joined=TableJoined.as_("j")
    ),
    "foreign key, left": lambda b: b.table("l").left_join(
        b.table("r"), join, Materialized.as_("s"), foreign_key=identity
    ),
    "join with a global table": lambda b: b.stream("in").join(
        b.global_table("t"), join, key_selector=lambda key, value: value, named="j"
    ),
    "left join with a global table": lambda b: b.stream("in").left_join(
        b.global_table("t"), join, key_selector=lambda key, value: value
    ),
    "join with a table": lambda b: b.stream("in").join(b.table("t"), join, joined=Joined.as_("j")),
    "processor": lambda b: b.add_state_store(store_of_texts()).stream("in").process(Upper, "store", named="p"),
}


@pytest.mark.parametrize("operator", JAVA)
def test_javas_order_of_arguments_is_accepted(operator):
    """Where types tell arguments apart, Java's order builds the same topology as the order of this API."""
    described = []
    for program in (JAVA[operator], HERE[operator]):
        builder = StreamsBuilder()
        program(builder)
        described.append(builder.build().describe())
    assert described[0] == described[1]


def test_javas_order_of_a_foreign_key_join_joins():
    """The foreign key comes before the joiner; the result is kept in the store that is named."""
    builder = StreamsBuilder()
    orders, customers = builder.table("orders"), builder.table("customers")
    orders.join(customers, lambda order: order[:1], join, "named").to_stream().to("out")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.create_input_topic("customers").pipe_input("c", "Ann")
        driver.create_input_topic("orders").pipe_input("1", "c-")
        assert driver.create_output_topic("out").read_value() == "c-Ann"
        assert driver.get_key_value_store("named").get("1").value == "c-Ann"


@pytest.mark.parametrize("duration", [timedelta(seconds=10), "10s", "10000ms", 10_000], ids=repr)
def test_durations_are_alike_everywhere(duration):
    """A timedelta, a text and milliseconds mean the same in windows, options, stores, settings and tests."""
    millis = 10_000
    assert TimeWindows.of_size_and_grace(duration, duration) == TimeWindows(millis, millis, millis)
    assert SlidingWindows.of_time_difference_and_grace(duration, duration) == SlidingWindows(millis, millis)
    assert SessionWindows.of_inactivity_gap_with_no_grace(duration).inactivity_gap_ms == millis
    assert JoinWindows.of_time_difference_with_no_grace(0).before(duration).before_ms == millis
    assert UnlimitedWindows.of().start_on(duration).start_ms == millis
    assert Materialized.as_("s").with_retention(duration).retention_ms == millis
    assert Joined.with_(grace_period=duration).grace_period_ms == millis
    assert Suppressed.until_time_limit(duration, BufferConfig.unbounded()).wait_ms == millis
    assert AutoOffsetReset.by_duration(duration).policy == "by_duration:10000"
    assert Stores.persistent_window_store("w", duration, duration).window_size_ms == millis
    assert Stores.persistent_session_store("w", duration).retention_ms == millis
    assert Stores.persistent_versioned_key_value_store("v", duration).history_retention_ms == millis
    assert StreamsConfig.of({"application.id": "a", "commit.interval.ms": duration}).commit_interval_ms == millis
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.advance_wall_clock_time(duration)
        topic = driver.create_input_topic("in", auto_advance_ms=duration)
        topic.advance_time(duration)
        topic.pipe_list([("k", "a"), ("k", "b")])
        records = driver.create_output_topic("out").read_records_to_list()
        assert [record.timestamp for record in records] == [2 * millis, 3 * millis]


@pytest.mark.parametrize("duration", [timedelta(seconds=10), "10s", 10_000], ids=repr)
def test_punctuators_take_durations_of_any_form(duration):
    """`schedule` takes what windows take."""
    times = []

    class Punctual(Processor):
        def init(self, context):
            super().init(context)
            context.schedule(duration, PunctuationType.WALL_CLOCK_TIME, times.append)

    builder = StreamsBuilder()
    builder.stream("in").process(Punctual)
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.advance_wall_clock_time("25s")
    assert len(times) >= 1


class Whole:
    """A whole number that is no `int`, as numpy's are."""

    def __init__(self, value):
        self._value = value

    def __index__(self):
        return self._value


def test_whole_numbers_of_any_type_are_accepted():
    """What Python takes as an index, such as numpy's integers, is a duration, a number of partitions and a limit."""
    assert TimeWindows.of_size_with_no_grace(Whole(5)) == TimeWindows(5, 5, 0)
    assert type(Repartitioned.as_("r").with_number_of_partitions(Whole(3)).partitions) is int
    assert type(BufferConfig.max_records(Whole(3)).with_max_bytes(Whole(4)).byte_limit) is int


class Callable2:
    """An object that is called with two arguments."""

    def __call__(self, key, value):
        """Return the value."""
        return value


def with_prefix(function):
    """Pass a prefix to a function of a prefix and a value, which becomes one of a value."""

    @wraps(function)
    def of_value(value):
        return function("prefix", value)

    return of_value


class Shown:
    """Shows values by their type."""

    @singledispatchmethod
    def show(self, value):
        """Return a text."""
        return str(value)


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("map_values", with_prefix(join)),
        ("map_values", partial(with_prefix(join))),
        ("map_values", Shown().show),
        ("map_values", mock.Mock(spec=join)),
        ("map_values", str),
        ("map_values", str.upper),
        ("map_values", int),
        ("map_values", "{}!".format),
        ("map_values", partial(join, "x")),
        ("map_values", lambda value, suffix="!": value + suffix),
        ("map_values", lambda *values: values[0]),
        ("map_values_with_key", Callable2()),
        ("map_values_with_key", Callable2().__call__),
        ("map_values_with_key", max),
        ("filter", lambda key, value, limit=3: len(value) > limit),
        ("foreach", print),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else type(value).__name__
    ),  # without addresses, the same in all processes
)
def test_functions_that_can_be_called_are_accepted(operator, function):
    """Functions with defaults, of any number of arguments, of objects, partial ones, and those in C without a signature."""
    getattr(Parts().stream, operator)(function)


def test_a_decorated_function_takes_what_its_decorator_takes():
    """It is refused for the arguments with which it cannot be called, not for those of the function inside."""
    with pytest.raises(TopologyError, match=r"not the function join\(value\)"):
        Parts().stream.map(with_prefix(join))


def test_paths_of_any_type_are_accepted():
    """Whatever `open` takes as a path names a file to print to."""
    assert Printed.to_file(PurePath("printed.txt")).path == Printed.to_file("printed.txt").path


def test_nodes_can_be_added_to_what_an_empty_builder_builds():
    """As in Java, the Processor API can go on where the DSL has added stores only, or nothing."""
    topology = StreamsBuilder().add_state_store(store_of_texts()).build()
    topology.add_source("source", "in").add_processor("upper", Upper, "source").add_sink("sink", "out", "upper")
    topology.connect_processor_and_state_stores("upper", "store")
    with TopologyTestDriver(topology, SETTINGS) as driver:
        driver.create_input_topic("in").pipe_input("k", "v")
        assert driver.create_output_topic("out").read_value() == "V"


def test_classes_can_be_derived_together_with_abstract_ones():
    """Users' subclasses can have abstract methods."""

    class Shared(StreamsBuilder, ABC):
        @abstractmethod
        def add_operators(self):
            """Add the operators."""

    with pytest.raises(TypeError, match="abstract"):
        Shared()


class StoresError(TopologyError):
    """An error of the user's, made of other arguments than a message."""

    def __init__(self, name, reason):
        super().__init__(f"{name}: {reason}")
        self.name = name


class WithWrongStores:
    """A supplier whose stores cannot be made."""

    def __call__(self):
        """Return a processor."""
        return Upper()

    def stores(self):
        """Fail."""
        raise StoresError("store", "no disk")


def test_errors_of_users_stay_the_same():
    """The place is added to the user's own error, whose class may take any arguments."""
    with pytest.raises(StoresError, match=r"store: no disk \(at .*test_arguments.py:\d+\)") as caught:
        Topology().add_source("source", "in").add_processor("upper", WithWrongStores(), "source")
    assert caught.value.name == "store"


def test_a_mistake_in_a_library_of_the_users_names_the_call_in_it():
    """The innermost frame that is not ours is named, not the program that called it."""

    def shared(stream):
        return stream.map_values(None)

    with pytest.raises(TopologyError) as caught:
        shared(Parts().stream)
    assert str(caught.value).endswith(f"(at {__file__}:{shared.__code__.co_firstlineno + 1})")


def test_a_wrong_name_is_no_attribute():
    """`hasattr` and `getattr` with a default work as usual."""
    stream = Parts().stream
    assert not hasattr(stream, "mapValues")
    assert getattr(Serdes, "String", None) is None
    assert not hasattr(stream, "_private")
