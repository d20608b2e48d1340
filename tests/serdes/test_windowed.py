"""Keys of time and session windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(key=KEYS, start=TIMES, end=TIMES)
def test_session_windowed_keys_survive(key, start, end):
    """Both bounds are read back."""
    serde = Serdes.session_windowed(Serdes.string())
    windowed = Windowed(key, Window(start, end))
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
    with pytest.raises(ConfigError, match="at least 1 ms"):
        TimeWindowedSerde(Serdes.string(), 0)


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
