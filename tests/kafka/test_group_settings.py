"""Settings of groups in real brokers, and groups whose members change the protocol."""

import secrets

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st
from tests.kafka.support import Group, committed
from tests.kafka.test_streams_group import StreamsGroup
from tests.waiting import wait_until

from millrace.config import GroupProtocol, StreamsConfig
from millrace.errors import StreamsError
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.group_settings import (
    GroupSetting,
    correct_group_settings,
    group_settings,
    set_group_settings,
    wrong_group_settings,
)
from millrace.records import OffsetAndMetadata

STANDBYS, SESSION = "streams.num.standby.replicas", "streams.session.timeout.ms"


@pytest.fixture
def admin(kafka):
    """Give a client of the broker."""
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def group_id():
    """Give the name of a group that does not exist."""
    return f"app-{secrets.token_hex(4)}"


def wait_until_known(admin, group_id, settings):
    """Wait until the broker knows settings of a group, a moment after the controller has accepted them."""
    wait_until(lambda: not wrong_group_settings(settings, group_settings(admin, group_id)), "the group's settings")


@pytest.mark.broker
def test_settings_are_corrected_until_they_are_as_wanted(admin, group_id):
    """Values are set, corrected after somebody else has changed them, and removed; what is right is left alone."""
    wanted = {STANDBYS: "1", SESSION: "50000"}
    assert correct_group_settings(admin, group_id, wanted) == wanted
    wait_until_known(admin, group_id, wanted)
    assert correct_group_settings(admin, group_id, wanted) == {}
    assert group_settings(admin, group_id)[STANDBYS] == GroupSetting("1", is_own=True)
    others = {STANDBYS: "2", "streams.heartbeat.interval.ms": "700"}
    set_group_settings(admin, group_id, others)
    wait_until_known(admin, group_id, others)
    assert correct_group_settings(admin, group_id, wanted) == {STANDBYS: "1"}
    wait_until_known(admin, group_id, wanted)
    default = {STANDBYS: "0", SESSION: None}
    assert correct_group_settings(admin, group_id, default) == default
    wait_until_known(admin, group_id, default)
    found = group_settings(admin, group_id)
    assert (found[STANDBYS].value, found[SESSION]) == ("0", GroupSetting("45000", is_own=False))
    assert found["streams.heartbeat.interval.ms"] == GroupSetting("700", is_own=True), "not the manifest's"


@pytest.mark.broker
def test_a_default_that_is_right_is_not_set(admin, group_id):
    """An application without standbys needs no permission to change its group's settings."""
    assert correct_group_settings(admin, group_id, {STANDBYS: "0", SESSION: None}) == {}
    assert correct_group_settings(admin, group_id, {}) == {}


@pytest.mark.broker
def test_what_the_brokers_do_not_accept_is_an_error(admin, group_id):
    """It names the setting, and the brokers' own limit."""
    with pytest.raises(StreamsError, match=r"num\.standby\.replicas=9.*group\.streams\.max\.standby\.replicas"):
        correct_group_settings(admin, group_id, {STANDBYS: "9"})
    with pytest.raises(StreamsError, match=r"streams\.other"):
        correct_group_settings(admin, group_id, {"streams.other": "1"})


_NAMES = st.sampled_from("abc")


@given(
    st.dictionaries(_NAMES, st.none() | st.sampled_from("12")),
    st.dictionaries(_NAMES, st.builds(GroupSetting, st.sampled_from("12"), st.booleans()), min_size=3),
)
def test_corrections_suffice(wanted, found):
    """After the corrections nothing is wrong, whatever was found."""
    after = dict(found)
    for name, value in wrong_group_settings(wanted, found).items():
        after[name] = GroupSetting("default" if value is None else value, is_own=value is not None)
    assert wrong_group_settings(wanted, after) == {}


@pytest.mark.broker
def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(kafka, topic_factory):
    """Members of the other protocol join once the last one has left, both ways, and continue from its offsets."""
    streams = StreamsGroup(kafka.bootstrap_servers, topic_factory("in", partitions=4), 4)
    classic = Group(kafka.bootstrap_servers, streams.topic, 4)
    classic.settings["application.id"] = streams.application_id
    with GroupAdmin(ClientSettings(StreamsConfig.of(streams.settings), "admin")) as admin:
        assert admin.brokers_assign()
        member = classic.join("a")
        classic.settle()
        assert admin.brokers_assign()
        member.commit_offsets({streams.tp(0): OffsetAndMetadata(17)})
        classic.members.pop("a").close(leave_group=True, timeout_s=30)
        member = streams.join("b")
        streams.settle()
        assert admin.describe().protocol is GroupProtocol.STREAMS
        assert committed(member, [streams.tp(0)]) == {streams.tp(0): OffsetAndMetadata(17)}
        member.commit_offsets({streams.tp(0): OffsetAndMetadata(18)})
        streams.close()
        wait_until(lambda: admin.describe().state == "Empty", lambda: str(admin.describe()))
        member = classic.join("c")
        classic.settle()
        assert admin.describe().protocol is GroupProtocol.CLASSIC
        assert committed(member, [streams.tp(0)])[streams.tp(0)].offset == 18
        classic.close()
