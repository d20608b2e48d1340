"""Wrappers around processors (KIP-1112)."""

from __future__ import annotations

import pytest

from millrace.config import StreamsConfig
from millrace.dsl import StreamsBuilder
from millrace.errors import ConfigError
from millrace.serdes import Serdes
from millrace.testing import TopologyTestDriver

SETTINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}


class Recording:
    """Remembers which node saw which value."""

    seen: list[tuple[str, str]]

    def __init__(self):
        self.seen = []

    def wrap(self, name, process, node):
        """Remember, then process."""

        def remember(key, value, timestamp, headers):
            self.seen.append((name, value))
            process(key, value, timestamp, headers)

        return remember


def test_wrapper_is_around_every_processor():
    """Operators of the DSL are wrapped too; sources and sinks are not processors."""
    wrapper = Recording()
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper, "up").filter(lambda _key, value: value, "keep").to("out")
    with TopologyTestDriver(builder.build(), {**SETTINGS, "processor.wrapper.class": wrapper}) as driver:
        driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("k", "v")
    assert wrapper.seen == [("up", "v"), ("keep", "V")]


@pytest.mark.parametrize("wrong", ["nowhere:nothing", object(), "tests.topology.test_wrapping:SETTINGS"])
def test_a_wrapper_that_is_none_is_refused(wrong):
    """The error names the key and the value."""
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to("out")
    config = StreamsConfig.of({**SETTINGS, "processor.wrapper.class": wrong})
    with pytest.raises(ConfigError, match=r"processor\.wrapper\.class"):
        builder.build(config).build(config)
