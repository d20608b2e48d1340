"""What travels through a topology."""

from __future__ import annotations

import pickle

import pytest

from millrace.errors import SerializationError
from millrace.processor.handlers import DeadLetterRecord
from millrace.records import Headers, Record


def test_headers_can_be_added_removed_and_found():
    """Names may repeat; headers do not change, but are made from others."""
    headers = Headers([("a", b"1"), ("b", None)]).add("a", b"2")
    assert headers == (("a", b"1"), ("b", None), ("a", b"2"))
    assert type(headers) is type(headers.remove("a")) is Headers
    assert headers.remove("a") == (("b", None),)
    assert headers.last("a") == b"2"
    assert list(headers.all("a")) == [b"1", b"2"]
    assert pickle.loads(pickle.dumps(headers)) == headers


@pytest.mark.parametrize(
    ("name", "told"), [("caf\udce9", "surrogates not allowed"), (b"a", "'bytes'"), (None, "NoneType")]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda name: Headers([("a", b"1"), (name, b"2")]),
        lambda name: Headers().add(name, b"2"),
        lambda name: Record("k", "v", 1).with_headers([(name, b"2")]),
    ],
    ids=["Headers", "add", "with_headers"],
)
def test_name_that_cannot_be_sent_is_refused(make, name, told):
    """The error is that of the call that makes the headers, and names the name."""
    with pytest.raises(SerializationError, match=told) as raised:
        make(name)
    assert f"{name!r} cannot be the name of a header" in str(raised.value)


@pytest.mark.parametrize(
    "make",
    [
        Headers,
        lambda headers: Record("k", "v", 1, headers),
        lambda headers: Record("k", "v", 1).with_headers(headers),
        lambda headers: DeadLetterRecord("failed", b"k", b"v", 1, headers),
    ],
    ids=["Headers", "Record", "with_headers", "DeadLetterRecord"],
)
def test_headers_are_checked_where_they_are_given(make):
    """None stands for empty headers, as in Java, pairs become headers, and anything else is refused with what to give."""

    def made(given):
        found = make(given)
        return found if isinstance(found, Headers) else found.headers

    assert made(None) == Headers()
    assert made([("a", b"1"), ("b", None)]) == Headers([("a", b"1"), ("b", None)])
    assert type(made(None)) is type(made([("a", b"1")])) is Headers
    for wrong in (5, {"a": b"1", "trace": b"2"}, ["trace"], [("a", b"1", b"2")], "abc"):
        with pytest.raises(SerializationError) as raised:
            make(wrong)
        assert str(raised.value) == (
            f"{wrong!r} cannot be headers. Give pairs of a name and bytes, such as [('trace', b'1')], or nothing"
        )
    for wrong in ("1", 1):
        with pytest.raises(SerializationError) as raised:
            make([("a", wrong)])
        assert (
            str(raised.value) == f"{wrong!r} cannot be the value of the header 'a': give bytes, such as b'1', or None"
        )
