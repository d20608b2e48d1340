"""Reads the headers of messages, even if their names are not UTF-8.

confluent-kafka decodes names as UTF-8. If that fails, `Message.headers` leaves an exception pending, and the message keeps a
list of pairs that lacks this name altogether, so that unpacking such a pair ends the process. CPython notices the exception
if the method is called from C, by `map` for instance. If it has been called from Python often enough, its result is trusted,
and the exception appears later, anywhere.
"""

from __future__ import annotations

import gc
from operator import length_hint
from typing import Any, Final

from confluent_kafka import Message

from millrace.serdes.primitives import decode_malformed

__all__ = ["mend_headers"]

_REPLACEMENT: Final = "\ufffd"
_WHOLE_PAIR: Final = 2


def mend_headers(messages: list[Message]) -> bool:
    """Make `headers` of messages safe to call, and return whether any message has headers.

    Bytes that are not UTF-8 in a name become U+FFFD, as in Java. If several names of a message are not UTF-8, only the first of
    them is known, and the others become a single U+FFFD.

    Args:
        messages: all of one class, which need not be confluent-kafka's.
    """
    if not messages:
        return False
    read: Any = type(messages[0]).headers
    left = iter(messages)
    found: list[object] = []
    while True:
        try:
            found.extend(filter(None, map(read, left)))
        except SystemError as error:
            message = messages[-length_hint(left) - 1]
            mended = _mended(message, error)
            message.set_headers(mended)
            found.append(message)
        else:
            return bool(found)


def _mended(message: Message, error: SystemError) -> Any:
    cause: BaseException | None = error
    while not isinstance(cause, UnicodeDecodeError):
        if cause is None:
            raise error
        cause = cause.__cause__
    name = decode_malformed(cause.object)
    mended = []
    pairs: Any = message.headers()
    for pair in pairs:
        if len(gc.get_referents(pair)) == _WHOLE_PAIR:  # looks at a pair without touching the missing name
            mended.append(pair)
        else:
            mended.append((name, pair[1]))
            name = _REPLACEMENT
    return mended
