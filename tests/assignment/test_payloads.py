"""SubscriptionInfo and AssignmentInfo equal Java's byte for byte, in every version."""

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.assignment.application_state import LATEST_OFFSET, HostInfo
from millrace.assignment.payloads import (
    AssignmentInfo,
    SubscriptionInfo,
    decode_assignment_info,
    decode_subscription_info,
    encode_assignment_info,
    encode_subscription_info,
    subscription_version,
)
from millrace.errors import TaskAssignmentError
from millrace.records import TaskId, TopicPartition

GOLDEN = [
    (line.split(" ")[0], int(line.split(" ")[1][1:]), bytes.fromhex(line.split(" = ")[1]))
    for line in Path(__file__).with_name("java-4.3.1-payloads.txt").read_text().splitlines()
]
PROCESS = UUID(bytes=bytes(range(1, 17)))


@pytest.mark.parametrize(("kind", "version", "data"), GOLDEN, ids=[f"{k}-v{v}" for k, v, _ in GOLDEN])
def test_what_java_wrote_is_read_and_written_again(kind, version, data):
    """Each payload written by Java 4.3.1 decodes, and encodes to the same bytes."""
    if kind == "SubscriptionInfo":
        info = decode_subscription_info(data)
        assert encode_subscription_info(info) == data
        assert info.process_id == PROCESS
    else:
        decoded = decode_assignment_info(data)
        assert encode_assignment_info(decoded) == data
        assert decoded.active == (TaskId(0, 1),)


def test_latest_subscription_says_what_java_meant():
    """The fields of Java's version 11 payload have the right values, not just the right bytes."""
    data = next(d for k, v, d in GOLDEN if k == "SubscriptionInfo" and v == 11)
    assert decode_subscription_info(data) == SubscriptionInfo(
        process_id=PROCESS,
        task_offset_sums={TaskId(0, 1): LATEST_OFFSET, TaskId(1, 0): 1234},
        user_end_point="h:80",
        unique_field=7,
        client_tags={"zone": "z1"},
    )


def test_latest_assignment_says_what_java_meant():
    """Host maps, standbys and the rebalance time of Java's version 11 payload have the right values."""
    data = next(d for k, v, d in GOLDEN if k == "AssignmentInfo" and v == 11)
    assert decode_assignment_info(data) == AssignmentInfo(
        active=(TaskId(0, 1),),
        standby={TaskId(1, 0): frozenset({TopicPartition("t2", 0)})},
        partitions_by_host={HostInfo("h", 80): frozenset({TopicPartition("t", 1)})},
        standby_partitions_by_host={HostInfo("g", 81): frozenset({TopicPartition("t2", 0)})},
    )


tasks = st.builds(TaskId, st.integers(0, 500), st.integers(0, 5000))
topics = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=30)
partitions = st.frozensets(st.builds(TopicPartition, topics, st.integers(0, 999)), max_size=4)
hosts = st.dictionaries(st.builds(HostInfo, topics, st.integers(1, 65535)), partitions, max_size=3)


@given(
    st.builds(
        SubscriptionInfo,
        process_id=st.uuids(),
        task_offset_sums=st.dictionaries(tasks, st.integers(-3, 2**63 - 1)),
        user_end_point=st.sampled_from(["", "a:1", "[::1]:80"]),
        unique_field=st.integers(-128, 127),
        error_code=st.integers(0, 4),
        client_tags=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    )
)
def test_any_subscription_survives_the_wire(info):
    """Decoding an encoded subscription gives the same subscription."""
    assert decode_subscription_info(encode_subscription_info(info)) == info


@given(
    st.builds(
        AssignmentInfo,
        active=st.lists(tasks, max_size=5).map(tuple),
        standby=st.dictionaries(tasks, partitions, max_size=3),
        partitions_by_host=hosts,
        standby_partitions_by_host=hosts,
        error_code=st.integers(0, 4),
        next_rebalance_ms=st.integers(0, 2**63 - 1),
    )
)
def test_any_assignment_survives_the_wire(info):
    """Decoding an encoded assignment gives the same assignment."""
    assert decode_assignment_info(encode_assignment_info(info)) == info


@given(st.binary(max_size=80))
def test_garbage_is_refused_with_a_clear_error(data):
    """Bytes that are not a payload always raise TaskAssignmentError."""
    for decode in (decode_subscription_info, decode_assignment_info):
        try:
            decode(data)
        except TaskAssignmentError as error:
            assert "cannot be read" in str(error)  # noqa: PT017 (some random bytes are valid)


def test_version_of_a_newer_subscription_is_readable():
    """The version can be read even if the rest of the format is unknown."""
    assert subscription_version(bytes.fromhex("0000000c0000000cff")) == 12
