"""How tables are kept: names, implementations, caches and changelogs."""

from __future__ import annotations

from typing import ClassVar

import pytest

from millrace.config import StreamsConfig
from millrace.dsl import Materialized, StoreType, StreamsBuilder, TimeWindows
from millrace.dsl.store_suppliers import BuiltInDslStoreSuppliers, InMemoryDslStoreSuppliers
from millrace.errors import ConfigError
from millrace.state import Stores
from millrace.topology.physical_topology import DeferredStore

JAVA_IN_MEMORY = "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers"


def store(materialized=None, **settings):
    """Return the builder of the store that a count gets."""
    config = StreamsConfig.of({"application.id": "app", **settings})
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count(materialized)
    (subtopology,) = builder.build(config).build(config).subtopologies
    return subtopology.store_builders[0]


def test_tables_are_kept_in_rocksdb_with_cache_and_changelog():
    """These are the defaults."""
    built = store()
    assert (built.persistent, built.caching_enabled, built.logging_enabled) == (True, True, True)
    assert (built.kind, built.value_format) == ("key-value", "timestamped")


@pytest.mark.parametrize(
    ("materialized", "settings"),
    [
        (None, {"default.dsl.store": "in_memory"}),
        (None, {"dsl.store.suppliers.class": InMemoryDslStoreSuppliers}),
        (None, {"dsl.store.suppliers.class": "millrace.dsl.store_suppliers:InMemoryDslStoreSuppliers"}),
        (None, {"dsl.store.suppliers.class": JAVA_IN_MEMORY}),
        (Materialized.as_(StoreType.IN_MEMORY), {}),
        (Materialized.as_(BuiltInDslStoreSuppliers.IN_MEMORY), {}),
        (Materialized.as_(Stores.in_memory_key_value_store("s")), {}),
    ],
)
def test_tables_can_be_kept_in_memory(materialized, settings):
    """By configuration, with Millrace's or Java's names, or for one table."""
    assert store(materialized, **settings).persistent is False


def test_a_tables_own_choice_wins_over_the_configuration():
    """An operator's own option takes precedence over the application's."""
    assert store(Materialized.as_(StoreType.ROCKS_DB), **{"default.dsl.store": "in_memory"}).persistent is True


def test_unknown_suppliers_are_refused():
    """The error names the key."""
    with pytest.raises(ConfigError, match=r"dsl\.store\.suppliers\.class"):
        store(**{"dsl.store.suppliers.class": "nowhere:nothing"})


def test_cache_and_changelog_can_be_turned_off():
    """Every update is forwarded at once, and the table is lost if its disk is."""
    built = store(Materialized.as_("s").with_caching_disabled().with_logging_disabled())
    assert (built.caching_enabled, built.logging_enabled) == (False, False)


def test_header_format_is_chosen_by_configuration():
    """`dsl.store.format` changes the layout on disk (KIP-1285)."""
    assert store(**{"dsl.store.format": "headers"}).value_format == "headers"


def test_windows_are_kept_as_long_as_they_can_change():
    """Size and grace, or longer if asked for."""
    for materialized, retention in ((None, 150), (Materialized.as_("w").with_retention(500), 500)):
        builder = StreamsBuilder()
        builder.stream("in").group_by_key().windowed_by(TimeWindows.of_size_and_grace(100, 50)).count(materialized)
        config = StreamsConfig.of({"application.id": "app"})
        (built,) = builder.build().build(config).subtopologies[0].store_builders
        assert (built.kind, built.retention_ms) == ("window", retention)


def test_a_store_is_not_built_before_its_configuration_is_known():
    """The graph declares stores in a form that cannot build anything; a configuration turns it into a builder."""
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count("c")
    (spec,) = builder._graph.compile(None).stores.values()
    assert isinstance(spec, DeferredStore)
    assert not hasattr(spec, "build")
    assert spec.for_config(StreamsConfig.of({"application.id": "app"})).build().name == "c"


class Configured(InMemoryDslStoreSuppliers):
    """Records for which application it was configured."""

    configured_for: ClassVar[list[str]] = []

    def configure(self, config):
        self.configured_for.append(config.application_id)


@pytest.mark.parametrize("given", [Configured, Configured()], ids=["class", "object"])
def test_configured_suppliers_are_given_the_configuration(monkeypatch, given):
    """Before they create a store; suppliers given to an operator are used as they are."""
    monkeypatch.setattr(Configured, "configured_for", [])
    assert store(**{"dsl.store.suppliers.class": given}).persistent is False
    assert Configured.configured_for == ["app"]
    assert store(Materialized("counts", dsl_store_suppliers=given)).persistent is False
    assert Configured.configured_for == ["app"]


def test_suppliers_and_their_parameters_are_public():
    """Everything needed to implement suppliers is in the package."""
    import millrace

    names = (
        "DslStoreSuppliers",
        "BuiltInDslStoreSuppliers",
        "DslKeyValueParams",
        "DslWindowParams",
        "DslSessionParams",
    )
    for name in names:
        assert getattr(millrace, name).__name__ == name
