"""Consumer group metadata: who commits offsets in a transaction.

librdkafka's producer takes it in `send_offsets_to_transaction`, as opaque bytes from confluent-kafka's own consumer. Our members
are not such consumers, so the bytes are written here. Once per process, before anything depends on it, the layout is compared
with librdkafka's own.

Layout (CGMDv2): `CGMDv2:` ‖ generation int32, native endian ‖ group id ‖ 00 ‖ member id ‖ 00 ‖ (01 | 00 ‖ instance id ‖ 00).
"""

from __future__ import annotations

import functools
import struct

from confluent_kafka import Consumer

from millrace.errors import UnsupportedFeatureError

_METADATA_MAGIC = b"CGMDv2:"


def encode_group_metadata(group_id: str, generation: int, member_id: str, instance_id: str | None = None) -> bytes:
    r"""Encode group metadata for `Producer.send_offsets_to_transaction`.

    >>> encode_group_metadata("g", 7, "m")[-6:]
    b'\x00g\x00m\x00\x01'
    """
    instance = b"\1" if instance_id is None else b"\0" + instance_id.encode() + b"\0"
    return (
        _METADATA_MAGIC
        + struct.pack("=i", generation)
        + group_id.encode()
        + b"\0"
        + member_id.encode()
        + b"\0"
        + instance
    )


@functools.cache
def check_group_metadata() -> None:
    """Compare our layout of group metadata with this process's librdkafka.

    Raises:
        UnsupportedFeatureError: They differ, so transactions could commit offsets for no member or for the wrong one.
    """
    for instance in (None, "instance"):
        settings = {"group.id": "millrace-layout", "bootstrap.servers": "127.0.0.1:9", "log_level": 0}
        if instance is not None:
            settings["group.instance.id"] = instance
        consumer = Consumer(settings)
        try:
            theirs = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        if theirs != encode_group_metadata("millrace-layout", -1, "", instance):
            raise UnsupportedFeatureError(
                "This version of confluent-kafka writes consumer group metadata in an unknown layout, so offsets cannot be "
                "committed safely: install the version that Millrace requires"
            )
