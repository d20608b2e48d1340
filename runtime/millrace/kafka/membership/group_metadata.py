"""The consumer group metadata that librdkafka's producer takes for `send_offsets_to_transaction`.

confluent-kafka hands it around as opaque bytes, made by its own consumer. Our members are not such consumers, so the bytes are
written here, and their layout is compared with librdkafka's own once per process before anything depends on it.

Layout (CGMDv2): `CGMDv2:` ‖ generation int32, native endian ‖ group id ‖ 00 ‖ member id ‖ 00 ‖ (01 | 00 ‖ instance id ‖ 00).
"""

from __future__ import annotations

import functools
import struct

from confluent_kafka import Consumer

from millrace.errors import UnsupportedFeatureError

_MAGIC = b"CGMDv2:"


def encode_group_metadata(group_id: str, generation: int, member_id: str, instance_id: str | None = None) -> bytes:
    r"""Return group metadata for `Producer.send_offsets_to_transaction`.

    >>> encode_group_metadata("g", 7, "m")[-6:]
    b'\x00g\x00m\x00\x01'
    """
    instance = b"\1" if instance_id is None else b"\0" + instance_id.encode() + b"\0"
    return _MAGIC + struct.pack("=i", generation) + group_id.encode() + b"\0" + member_id.encode() + b"\0" + instance


@functools.cache
def check_layout() -> None:
    """Compare the layout with what this process's librdkafka writes.

    Raises:
        UnsupportedFeatureError: They differ: transactions could commit offsets for nobody, or for another member.
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
