"""Keys of time and session windows."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.config import StreamsConfig
from millrace.errors import ConfigError, SerializationError
from millrace.records import Window, Windowed
from millrace.serdes import Serdes, SessionWindowedSerde, TimeWindowedSerde

KEYS = st.text(st.characters(exclude_categories=["Cs"]))
TIMES = st.integers(0, 2**62)


@pytest.mark.parametrize("for_changelog", [False, True])
@given(key=KEYS, start=TIMES)
def test_time_windowed_keys_survive(for_changelog, key, start):
    """The key and the start are read back, and the size determines the end, in both formats."""
    serde = TimeWindowedSerde(Serdes.string(), 100, for_changelog=for_changelog)
    windowed = Windowed(key, Window(start, start + 100))
    assert serde.deserialize("t", serde.serialize("t", windowed)) == windowed


@given(key=KEYS, bounds=st.tuples(TIMES, TIMES))
def test_session_windowed_keys_survive(key, bounds):
    """Both bounds are read back."""
    serde = Serdes.session_windowed(Serdes.string())
    windowed = Windowed(key, Window(min(bounds), max(bounds)))
    assert serde.deserialize("t", serde.serialize("t", windowed)) == windowed


def test_the_changelog_flavour_ends_in_a_sequence_number():
    """Keys in a window store's changelog have four more bytes."""
    serde = Serdes.time_windowed(Serdes.string(), 100, for_changelog=True)
    assert serde.serialize("t", Windowed("k", Window(1, 101))).hex() == "6b000000000000000100000000"


def test_a_window_that_would_end_after_the_last_millisecond_is_clipped():
    """The end saturates at the largest 64-bit number and does not overflow."""
    serde = TimeWindowedSerde(Serdes.string(), 100)
    data = serde.serialize("t", Windowed("k", Window(2**63 - 10, 2**63 - 1)))
    assert serde.deserialize("t", data).window.end == 2**63 - 1


def test_the_inner_key_alone_decides_the_partition():
    """`serialize_base_key` omits the window."""
    windowed = Windowed("k", Window(1, 101))
    assert TimeWindowedSerde(Serdes.string(), 100).serialize_base_key("t", windowed) == b"k"
    assert SessionWindowedSerde(Serdes.string()).serialize_base_key("t", windowed) == b"k"


def test_reading_needs_the_window_size():
    """Without the size the end is unknown; the error names the setting."""
    serde = TimeWindowedSerde(Serdes.string())
    with pytest.raises(SerializationError, match=r"window\.size\.ms"):
        serde.deserialize("t", bytes(9))
    with pytest.raises(ConfigError, match="at least 0 ms"):
        TimeWindowedSerde(Serdes.string(), -1)


def test_the_window_size_may_come_from_the_configuration():
    """`window.size.ms` is used by a serde that was not given a size, and by no other."""
    config = StreamsConfig.of({"application.id": "a", "bootstrap.servers": "b:1", "window.size.ms": 50})
    unknown, known = TimeWindowedSerde(Serdes.string()), TimeWindowedSerde(Serdes.string(), 100)
    data = known.serialize("t", Windowed("k", Window(1, 101)))
    for serde, end in ((unknown, 51), (known, 101)):
        serde.configure(config)
        assert serde.deserialize("t", data) == Windowed("k", Window(1, end))


def test_no_bytes_are_no_key():
    """An empty key is read as null, as Java's deserialisers do."""
    for serde in (TimeWindowedSerde(Serdes.string(), 100), SessionWindowedSerde(Serdes.string())):
        assert serde.deserialize("t", b"") is None


@pytest.mark.parametrize("window", [Window(-1, 99), Window(-2, -1)], ids=repr)
def test_windows_before_the_epoch_are_refused(window):
    """Neither written nor read: such bytes come from another serde."""
    for serde, suffix in (
        (TimeWindowedSerde(Serdes.string(), 100), struct.pack(">q", window.start)),
        (SessionWindowedSerde(Serdes.string()), struct.pack(">qq", window.end, window.start)),
    ):
        with pytest.raises(SerializationError, match="start"):
            serde.serialize("t", Windowed("k", window))
        with pytest.raises(SerializationError, match="written with another serde"):
            serde.deserialize("t", b"k" + suffix)


def test_a_session_that_ends_before_its_start_is_refused():
    """Neither written nor read."""
    serde = SessionWindowedSerde(Serdes.string())
    with pytest.raises(SerializationError, match="start <= end"):
        serde.serialize("t", Windowed("k", Window(2, 1)))
    with pytest.raises(SerializationError, match="from 2 to 1"):
        serde.deserialize("t", b"k" + struct.pack(">qq", 1, 2))


def test_a_window_of_no_key_is_refused():
    """The inner serde is not asked to write null, which JSON would write as text."""
    for serde in (TimeWindowedSerde(Serdes.json(), 100), SessionWindowedSerde(Serdes.json())):
        with pytest.raises(SerializationError, match="with a key"):
            serde.serialize("t", Windowed(None, Window(0, 100)))


@pytest.mark.parametrize(
    ("serde", "least"),
    [
        (TimeWindowedSerde(Serdes.string(), 100), 8),
        (TimeWindowedSerde(Serdes.string(), 100, for_changelog=True), 12),
        (SessionWindowedSerde(Serdes.string()), 16),
    ],
    ids=repr,
)
def test_bytes_too_few_for_a_window_are_refused(serde, least):
    """A key shorter than its window is an error; one with only the window has an empty inner key."""
    with pytest.raises(SerializationError, match=f"at least {least} bytes"):
        serde.deserialize("t", bytes(least - 1))
    assert serde.deserialize("t", bytes(least)).key == ""


@pytest.mark.parametrize("wrong", ["k", ("k", 1), ("k", ("a", "b")), None, 7], ids=repr)
def test_a_key_without_a_window_is_refused(wrong):
    """The error for something else than a windowed key names its type."""
    for serde in (TimeWindowedSerde(Serdes.string(), 100), SessionWindowedSerde(Serdes.string())):
        with pytest.raises(SerializationError, match=f"given {type(wrong).__name__}"):
            serde.serialize("t", wrong)
