"""Wrappers around processors (KIP-1112)."""

from __future__ import annotations

import pytest

from millrace.config import StreamsConfig
from millrace.dsl import Branched, JoinWindows, Materialized, Named, StreamsBuilder
from millrace.errors import ConfigError, TopologyError
from millrace.processor import FixedKeyProcessor, Processor
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.testing import TopologyTestDriver
from millrace.topology import ProcessorWrapper, Topology

SETTINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}
S = Serdes.string()


class Around:
    """A processor that delegates everything to another one."""

    def __init__(self, name, inner, seen):
        self.name, self.inner, self.seen = name, inner, seen

    def init(self, context):
        self.context = context
        self.inner.init(context)

    def process(self, record):
        self.seen.append((self.name, record.value))
        self.inner.process(record)

    def close(self):
        self.inner.close()
        self.seen.append((self.name, "closed"))


class Recording(ProcessorWrapper):
    """Records which processor saw which value."""

    def __init__(self):
        self.seen = []
        self.configured_for = []

    def configure(self, config):
        self.configured_for.append(config.application_id)

    def wrap_processor_supplier(self, name, supplier):
        return lambda: Around(name, supplier(), self.seen)

    def wrap_fixed_key_processor_supplier(self, name, supplier):
        return lambda: Around(f"fixed-key {name}", supplier(), self.seen)


def driver_of(topology, wrapper):
    """Run a topology with a wrapper."""
    return TopologyTestDriver(topology, {**SETTINGS, "processor.wrapper.class": wrapper})


def test_wrapper_is_around_every_processor():
    """Operators of the DSL are wrapped too; sources and sinks are not processors. The wrapper is configured once, beforehand."""
    wrapper = Recording()
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper, "up").filter(lambda _key, value: value, "keep").to("out")
    with driver_of(builder.build(), wrapper) as driver:
        driver.create_input_topic("in").pipe_input("k", "v")
        assert driver.create_output_topic("out").read_value() == "V"
    assert wrapper.seen[:2] == [("up", "v"), ("keep", "V")]
    assert sorted(wrapper.seen[2:]) == [("keep", "closed"), ("up", "closed")]
    assert wrapper.configured_for == ["app"]


class Tag(Processor):
    """Appends to the value."""

    def process(self, record):
        self.context.forward(record.with_value(f"{record.value}!"))


class TagValue(FixedKeyProcessor):
    """Appends to the value."""

    def process(self, record):
        self.context.forward(record.with_value(f"{record.value}?"))


def test_users_processors_are_wrapped_each_by_its_kind():
    """`process_values` uses fixed-key processors, `process` and `Topology.add_processor` the others."""
    wrapper = Recording()
    builder = StreamsBuilder()
    builder.stream("in").process(Tag, named="any").process_values(TagValue, named="fixed").to("out")
    with driver_of(builder.build(), wrapper) as driver:
        driver.create_input_topic("in").pipe_input("k", "v")
        assert driver.create_output_topic("out").read_value() == "v!?"
        assert wrapper.seen == [("any", "v"), ("fixed-key fixed", "v!")]

    topology = Topology().add_source("s", "in").add_processor("p", Tag, "s").add_sink("t", "out", "p")
    wrapper = Recording()
    with driver_of(topology, wrapper) as driver:
        driver.create_input_topic("in").pipe_input("k", "v")
        assert wrapper.seen == [("p", "v")]


def busy_topology():
    """Return a topology in which many operators of the DSL share tasks: tables, joins, branches, windows."""
    builder = StreamsBuilder()
    orders, payments = builder.stream("orders"), builder.stream("payments")
    orders.left_join(
        payments, lambda left, right: f"{left}/{right}", JoinWindows.of_time_difference_with_no_grace(10)
    ).to("joined")
    counts = orders.group_by_key().count(Materialized("counts", value_serde=Serdes.long()))
    names = builder.table("names", "names")
    names.join(counts, lambda name, count: f"{name}:{count}").to_stream().to("named-counts")
    greetings = orders.left_join(names, lambda order, name: f"{order}-{name}").split(Named("by-"))
    greetings.branch(lambda _key, value: value.endswith("None"), Branched(consumer=lambda branch: branch.to("unknown")))
    greetings.default_branch(Branched(consumer=lambda branch: branch.to("known")))
    return builder.build()


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_wrapped_operators_give_what_they_give_alone(cache_bytes):
    """Joins, tables and caches have the same results when wrapped."""

    def outputs(settings):
        config = {**SETTINGS, "statestore.cache.max.bytes": cache_bytes, **settings}
        with TopologyTestDriver(busy_topology(), config) as driver:
            produced = driver.record_produced()
            topics = {name: driver.create_input_topic(name) for name in ("orders", "payments", "names")}
            topics["names"].pipe_input("a", "Ann", timestamp=1)
            topics["orders"].pipe_input("a", "o1", timestamp=5)
            topics["payments"].pipe_input("a", "p1", timestamp=8)
            topics["orders"].pipe_input("b", "o2", timestamp=9)
            topics["names"].pipe_input("b", "Bob", timestamp=11)
            topics["orders"].pipe_input("a", "o3", timestamp=50)
            topics["names"].pipe_input("a", None, timestamp=51)
            return list(produced)

    wrapper = Recording()
    expected = outputs({})
    assert len({record.topic for record in expected}) > 5
    assert outputs({"processor.wrapper.class": wrapper}) == expected
    assert len({name for name, _ in wrapper.seen}) > 10


class Forwards:
    """A context that delegates to another one, and shows what is forwarded."""

    def __init__(self, context, forwarded):
        self._context, self._forwarded = context, forwarded

    def forward(self, record, child=None):
        self._forwarded.append(record.value)
        self._context.forward(record, child)

    def __getattr__(self, name):
        return getattr(self._context, name)


def test_wrapper_may_see_what_an_operator_sends_on():
    """It can pass the operator a context of its own, which must delegate to the task's context."""
    forwarded = []

    class Outgoing(ProcessorWrapper):
        def wrap_processor_supplier(self, name, supplier):
            class Wrapped(Around):
                def init(self, context):
                    self.inner.init(Forwards(context, forwarded))

            return lambda: Wrapped(name, supplier(), [])

    builder = StreamsBuilder()
    builder.stream("in").flat_map_values(str.split).to("out")
    with driver_of(builder.build(), Outgoing()) as driver:
        driver.create_input_topic("in").pipe_input("k", "a b")
        assert driver.create_output_topic("out").read_values_to_list() == ["a", "b"]
    assert forwarded == ["a", "b"]


def test_operator_refuses_a_context_it_cannot_run_on():
    """The error says which context to use."""

    class Blind(ProcessorWrapper):
        def wrap_processor_supplier(self, name, supplier):
            class Wrapped(Around):
                def init(self, context):
                    self.inner.init(object())

            return lambda: Wrapped(name, supplier(), [])

    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to("out")
    with pytest.raises(TopologyError, match="passes on its attributes"):
        driver_of(builder.build(), Blind())


class Audit(ProcessorWrapper):
    """Keeps the last value of each key in a store, next to every user's processor."""

    def __init__(self, shared=None):
        self.shared = shared

    def wrap_processor_supplier(self, name, supplier):
        return AuditSupplier(name, supplier, self.shared)


class AuditSupplier:
    """Returns the processor, and provides its store."""

    def __init__(self, name, supplier, shared):
        self.name, self.supplier = name, supplier
        builder = Stores.key_value_store_builder(Stores.in_memory_key_value_store(f"{name}-audit"), S, S)
        self.store = shared or builder

    def __call__(self):
        store_name = self.store.name

        class Audited(Around):
            def process(self, record):
                self.context.get_state_store(store_name).put(record.key, record.value)
                self.inner.process(record)

        return Audited(self.name, self.supplier(), [])

    def stores(self):
        return [self.store, *(getattr(self.supplier, "stores", list)() or ())]


class Counting(Processor):
    """Counts records in a store that its supplier provides."""

    @staticmethod
    def stores():
        return [Stores.key_value_store_builder(Stores.in_memory_key_value_store("count"), S, Serdes.long())]

    def process(self, record):
        store = self.context.get_state_store("count")
        store.put("n", (store.get("n") or 0) + 1)
        self.context.forward(record)


def test_wrapper_adds_stores():
    """In addition to the supplier's stores, logged, and for operators of the DSL too; a topology can be built more than once."""
    builder = StreamsBuilder()
    builder.stream("in").process(Counting, named="p").map_values(str.upper, "up").to("out")
    topology = builder.build()
    for _ in range(2):
        with driver_of(topology, Audit()) as driver:
            driver.create_input_topic("in").pipe_input("k", "v")
            assert driver.get_state_store("p-audit").get("k") == "v"
            assert driver.get_state_store("up-audit").get("k") == "v"
            assert driver.get_state_store("count").get("n") == 1
            assert "app-p-audit-changelog" in driver.produced_topic_names()
    config = StreamsConfig.of({**SETTINGS, "processor.wrapper.class": Audit()})
    (subtopology,) = topology.build(config).plan().subtopologies
    assert [store.name for store in subtopology.stores] == ["count", "p-audit", "up-audit"]
    (plain,) = topology.build(StreamsConfig.of(SETTINGS)).subtopologies
    assert [store.name for store in plain.store_builders] == ["count"]


class Passing(ProcessorWrapper):
    """Passes on the stores of every supplier, as Java's wrappers do."""

    def wrap_processor_supplier(self, name, supplier):
        """Return a supplier with the stores of the given one."""

        class Passed:
            stores = staticmethod(supplier.stores)

            def __call__(self):
                return supplier()

        return Passed()


def test_wrapper_may_ask_operators_for_stores():
    """Like a user's supplier that has stores, that of an operator of the DSL answers, with none of its own."""
    builder = StreamsBuilder()
    builder.stream("in").process(Counting, named="p").map_values(str.upper, "up").to("out")
    with driver_of(builder.build(), Passing()) as driver:
        driver.create_input_topic("in").pipe_input("k", "v")
        assert driver.create_output_topic("out").read_value() == "V"
        assert set(driver.get_all_state_stores()) == {"count"}


def test_processors_that_a_wrapper_gives_one_store_share_tasks():
    """As with any store that two processors use; two stores with the same name are refused."""
    builder = StreamsBuilder()
    builder.stream("a").process(Tag, named="pa").to("out")
    builder.stream("b").process(Tag, named="pb").to("out")
    topology = builder.build()
    assert len(topology.build(StreamsConfig.of(SETTINGS)).subtopologies) == 2
    shared = Stores.key_value_store_builder(Stores.in_memory_key_value_store("shared"), S, S)
    config = StreamsConfig.of({**SETTINGS, "processor.wrapper.class": Audit(shared)})
    assert len(topology.build(config).subtopologies) == 1

    class SameName(ProcessorWrapper):
        def wrap_processor_supplier(self, name, supplier):
            return AuditSupplier("same", supplier, None)

    config = StreamsConfig.of({**SETTINGS, "processor.wrapper.class": SameName})
    with pytest.raises(TopologyError, match="same-audit"):
        topology.build(config)


def test_global_processors_are_wrapped_but_get_no_stores():
    """They run in a task without other stores."""
    builder = StreamsBuilder()
    builder.global_table("names", "names")
    builder.stream("in").to("out")
    wrapper = Recording()
    with driver_of(builder.build(), wrapper) as driver:
        driver.create_input_topic("names").pipe_input("k", "v")
        assert driver.get_key_value_store("names").get("k").value == "v"
    assert wrapper.seen[0][1] == "v"
    with pytest.raises(TopologyError, match="global store"):
        driver_of(builder.build(), Audit())


def test_wrapper_that_leaves_a_supplier_as_it_is_changes_nothing():
    """A node of the DSL stays a plain function."""
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).process_values(TagValue).to("out")
    topology = builder.build()
    wrapped = topology.build(StreamsConfig.of({**SETTINGS, "processor.wrapper.class": ProcessorWrapper}))
    plain = topology.build(StreamsConfig.of(SETTINGS))
    assert [n.factory for n in wrapped.subtopologies[0].nodes[1:3]] == [
        n.factory for n in plain.subtopologies[0].nodes[1:3]
    ]


class ReturnsNothing(ProcessorWrapper):
    """Forgets to return."""

    def wrap_processor_supplier(self, name, supplier):
        """Return None."""


@pytest.mark.parametrize(
    "wrong", ["nowhere:nothing", object(), "tests.topology.test_processor_wrapper:SETTINGS", ReturnsNothing]
)
def test_a_wrapper_that_is_none_is_refused(wrong):
    """The error names the key and the value."""
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to("out")
    config = StreamsConfig.of({**SETTINGS, "processor.wrapper.class": wrong})
    with pytest.raises(ConfigError, match=r"processor\.wrapper\.class"):
        builder.build(config).build(config)


def test_errors_of_wrapped_operators_go_to_the_processing_handler():
    """An exception of a user's function is handled once, with the operator's name."""
    asked = []

    class Skip:
        def handle_error(self, context, record, exception):
            from millrace.processor import HandlerResponse

            asked.append((context.node, type(exception).__name__))
            return HandlerResponse.resume()

    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper, "up").map_values(int, "number").map_values(str).to("out")
    settings = {**SETTINGS, "processor.wrapper.class": Recording(), "processing.exception.handler": Skip()}
    with TopologyTestDriver(builder.build(), settings) as driver:
        driver.create_input_topic("in").pipe_list([("k", "x"), ("k", "7")])
        assert driver.create_output_topic("out").read_values_to_list() == ["7"]
    assert asked == [("number", "ValueError")]
