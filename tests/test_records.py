"""What travels through a topology."""

from __future__ import annotations

import pickle

import pytest

from millrace.errors import SerializationError
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
