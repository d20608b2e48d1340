"""Settings that a client refuses when it is made, before anything is started."""

from __future__ import annotations

import pytest
from tests.instance.support import word_count

from millrace.errors import ConfigError
from millrace.instance import KafkaStreams

HANDLERS = ["deserialization", "default.deserialization", "processing", "production", "default.production"]


class NeedsArguments:
    """An exception handler that cannot be made."""

    def __init__(self, needed):
        self.needed = needed

    def handle_error(self, context, record, error):
        """Never called."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *[({f"{kind}.exception.handler": "nosuch"}, "or one of LogAndFail") for kind in HANDLERS],
        *[({f"{kind}.exception.handler": 7}, "no method handle_error") for kind in HANDLERS],
        ({"processing.exception.handler": NeedsArguments}, "needs arguments"),
        ({"default.timestamp.extractor": "nosuch"}, "or one of FailOnInvalidTimestamp"),
        ({"default.timestamp.extractor": 7}, "not callable"),
        ({"default.key.serde": "nosuch"}, "or one of string"),
        ({"default.value.serde": "nosuch"}, "or one of string"),
        ({"task.assignor.class": "nosuch"}, "or one of HighAvailabilityTaskAssignor"),
        ({"default.client.supplier": "nosuch"}, "or one of DefaultKafkaClientSupplier"),
        ({"rocksdb.config.setter": "nosuch"}, "is not known here"),
        ({"topology.optimization": "al"}, r"must be none, all, or a list of merge\.repartition\.topics"),
        ({"application.server": "nohost"}, "must be host:port"),
        ({f"client.tag.t{number}": "v" for number in range(6)}, r"client\.tag\.\* has 6 tags; at most 5"),
        ({"client.tag." + "x" * 21: "v"}, "may have 20 characters"),
        ({"client.tag.zone": "x" * 31}, "its value 30"),
        ({"rack.aware.assignment.tags": "a,b,c,d,e,f"}, "names 6 tags; at most 5"),
        ({"rack.aware.assignment.tags": "zone"}, r"zone has no value here: set client\.tag\.zone"),
    ],
)
def test_setting_is_refused_at_once(settings, message):
    """What a thread or task could not use is an error of the constructor, with what may be given instead."""
    with pytest.raises(ConfigError, match=message):
        KafkaStreams(word_count("in", "out"), {"application.id": "a", "bootstrap.servers": "localhost:1", **settings})


def test_tags_within_the_limits_are_taken():
    """Five tags with names of 20 and values of 30 characters are allowed, as in Kafka Streams."""
    tags = {f"client.tag.{'x' * 19}{number}": "v" * 30 for number in range(5)}
    wanted = ",".join(tag.removeprefix("client.tag.") for tag in tags)
    settings = {"application.id": "a", "bootstrap.servers": "localhost:1", "rack.aware.assignment.tags": wanted, **tags}
    KafkaStreams(word_count("in", "out"), settings)
