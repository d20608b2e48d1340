"""Every task has its own processors and stores: a supplier that gives the same object again is refused at build.

Java refuses such suppliers of processors; of stores it does not. Two tasks would share their state, and one changelog partition.
"""

from __future__ import annotations

import pytest

from millrace.config import StreamsConfig
from millrace.dsl import Consumed, DslKeyValueParams, Materialized, StreamsBuilder
from millrace.errors import TopologyError
from millrace.processor import FixedKeyProcessor, Processor
from millrace.serdes import Serdes
from millrace.state import StoreBuilderBase, Stores
from millrace.testing import TopologyTestDriver
from millrace.topology import ProcessorWrapper, Topology

S = Serdes.string()
SETTINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}


class Pass(Processor):
    """Forwards everything."""

    def process(self, record):
        self.context.forward(record)


class PassValues(FixedKeyProcessor):
    """Forwards everything."""

    def process(self, record):
        self.context.forward(record)


class Single(Pass):
    """A class of which there is only one object."""

    _only = None

    def __new__(cls):
        cls._only = cls._only or super().__new__(cls)
        return cls._only


class Transform:
    """Changes nothing."""

    def init(self, context):
        pass

    def transform(self, _key, value):
        return value

    def close(self):
        pass


def unlogged(name="st"):
    """Return the builder of a store in memory."""
    return Stores.key_value_store_builder(Stores.in_memory_key_value_store(name), S, S).with_logging_disabled()


ONE, ONE_OF_VALUES, ONE_TRANSFORM = Pass(), PassValues(), Transform()
CALLS = [
    ("p", "the class Pass", lambda b: b.stream("in").process(lambda: ONE, named="p")),
    ("KSTREAM-PROCESSOR-0000000001", "the class Pass", lambda b: b.stream("in").process(lambda: ONE)),
    ("p", "the class Single", lambda b: b.stream("in").process(Single, named="p")),
    ("p", "the class PassValues", lambda b: b.stream("in").process_values(lambda: ONE_OF_VALUES, named="p")),
    ("p", "the class Transform", lambda b: b.table("in").transform_values(lambda: ONE_TRANSFORM, named="p")),
    (
        "KTABLE-SOURCE-0000000001",
        "the class Pass",
        lambda b: b.add_global_store(unlogged(), "in", Consumed.with_(S, S), lambda: ONE),
    ),
    ("p", "the class Pass", lambda _: Topology().add_source("s", "in").add_processor("p", lambda: ONE, "s")),
    ("p", "the class Pass", lambda _: Topology().add_global_store(unlogged(), "s", "in", "p", lambda: ONE)),
    ("p", "the class Pass", lambda _: Topology().add_read_only_state_store(unlogged(), "s", "in", "p", lambda: ONE)),
]


@pytest.mark.parametrize(("node", "advice", "call"), CALLS)
def test_a_processor_for_all_tasks_is_refused_by_the_call(node, advice, call):
    """The error names the node, what to give instead, and the place of the call."""
    with pytest.raises(TopologyError) as raised:
        call(StreamsBuilder())
    text = str(raised.value)
    assert f"The supplier of node {node} gives the same object each time" in text
    assert f"give {advice}, or lambda: " in text
    assert "test_suppliers.py:" in text


def test_suppliers_that_make_new_objects_are_accepted():
    """A class, a function, or one that fails where the topology is only built, for want of a secret for instance."""

    def needs_a_secret():
        raise KeyError("PASSWORD")

    builder = StreamsBuilder()
    stream = builder.stream("in").process(Pass).process(lambda: Pass()).process_values(PassValues)  # noqa: PLW0108
    stream.process(needs_a_secret).to("out")
    assert "KSTREAM-PROCESSOR-0000000004" in builder.build().describe()


def test_a_wrapper_with_one_processor_is_refused():
    """What the wrapper supplies is held to the same."""

    class Wrapper(ProcessorWrapper):
        def wrap_processor_supplier(self, name, supplier):
            return (lambda: ONE) if name == "wrapped" else supplier

    builder = StreamsBuilder()
    builder.stream("in").process(Pass, named="wrapped").to("out")
    config = StreamsConfig.of({**SETTINGS, "processor.wrapper.class": Wrapper})
    with pytest.raises(TopologyError, match="The supplier of node wrapped gives the same object each time"):
        builder.build().build(config)


class OwnSupplier:
    """Supplies one bytes store for all tasks."""

    persistent = False
    value_format = None

    def __init__(self, name):
        self.name = name
        self.only = Stores.in_memory_key_value_store(name).get()

    def get(self):
        return self.only


class OwnBuilder(StoreBuilderBase):
    """Builds one store for all tasks."""

    def __init__(self, name):
        super().__init__(name)
        self.only = unlogged(name).build()

    def build(self):
        return self.only


class OwnDslSuppliers:
    """Gives every table the same supplier."""

    def __init__(self, supplier):
        self.supplier = supplier

    def key_value_store(self, _params: DslKeyValueParams):
        return self.supplier


STORES = [
    lambda b: b.stream("in").group_by_key().count(Materialized.as_(OwnSupplier("st"))),
    lambda b: (
        b.add_state_store(Stores.key_value_store_builder(OwnSupplier("st"), S, S)).stream("in").process(Pass, "st")
    ),
    lambda b: b.add_state_store(OwnBuilder("st")).stream("in").process(Pass, "st"),
    lambda b: (
        b.stream("in").group_by_key().count(Materialized("st", dsl_store_suppliers=OwnDslSuppliers(OwnSupplier("st"))))
    ),
]


@pytest.mark.parametrize("declare", STORES)
def test_a_store_for_all_tasks_is_refused(declare):
    """Whoever makes it: a supplier, a builder, or the suppliers of the DSL."""
    builder = StreamsBuilder()
    declare(builder)
    with pytest.raises(TopologyError, match="of store st gives the same object each time") as raised:
        TopologyTestDriver(builder.build(), SETTINGS)
    assert "return a new store" in str(raised.value)


class BuilderWithFunction(OwnBuilder):
    """Has a function that makes its stores where Millrace's builders have a supplier."""

    def __init__(self, name):
        super().__init__(name)
        self.supplier = unlogged(name).build

    def build(self):
        return self.supplier()


def test_what_a_users_builder_calls_its_supplier_may_be_anything():
    """Only a supplier of bytes stores is asked for two."""
    builder = StreamsBuilder()
    builder.add_state_store(BuilderWithFunction("st").with_logging_disabled()).stream("in").process(Pass, "st")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        assert driver.get_state_store("st").name == "st"


def test_one_supplier_for_two_tables_is_refused():
    """The suppliers of the DSL must name each store as asked: otherwise the tables would be one."""
    suppliers = OwnDslSuppliers(Stores.in_memory_key_value_store("first"))
    builder = StreamsBuilder()
    for name in ("first", "second"):
        builder.stream(name).group_by_key().count(Materialized(name, dsl_store_suppliers=suppliers))
    with pytest.raises(TopologyError, match=r"store second .* named first"):
        TopologyTestDriver(builder.build(), SETTINGS)
