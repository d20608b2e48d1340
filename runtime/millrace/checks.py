"""Checks of users' arguments: a mistake is reported where it is made, with the file and line of the call.

Methods of the DSL check their arguments when they are called. Nothing is checked, wrapped or recorded for each record.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import operator
import re
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, SupportsIndex, TypeVar

from millrace.errors import ConfigError, InvalidTimestampError, TopologyError

T = TypeVar("T")

_OURS: Final = "millrace"
_BETWEEN: Final = frozenset({_OURS, "contextlib", "dataclasses", "functools", "pydantic", "typing"})
"""Packages whose frames can lie between the user's call and the check."""
_HOSTS: Final = frozenset({"click", "concurrent", "runpy", "threading", "typer"})
"""Callers of Millrace that are not users: its commands and threads."""
_RENAMED: Final = {"through": "repartition", "transform": "process", "transform_values": "process_values"}
"""Operators that Kafka Streams has removed, and what replaces them."""


class Call(NamedTuple):
    """A user's call of one of our functions."""

    function: str
    """With its class, for example `KStream.map_values`."""
    place: str
    """File and line, or nothing if no user's code is on the stack."""


def users_call() -> Call:
    """Return the innermost call of one of our functions from code that is not ours."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (the documented way to look at the stack)
    function = ""
    while frame is not None and (package := _package(frame)) in _BETWEEN:
        if package == _OURS:
            function = _function(frame)
        frame = frame.f_back
    if frame is None or _package(frame) in _HOSTS:
        return Call(function, "")
    return Call(function, f"{frame.f_code.co_filename}:{frame.f_lineno}")


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _function(frame: FrameType) -> str:
    owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
    if owner is None:
        return frame.f_code.co_qualname
    kind = owner if isinstance(owner, type) else type(owner)
    name = frame.f_code.co_name
    return kind.__name__ if name.startswith("__") else f"{kind.__name__}.{name}"


# Errors.


def at(place: str) -> str:
    """Return the end of a message that names a place; nothing if there is none."""
    return f" (at {place})" if place else ""


def located(message: str) -> str:
    """Return a message with the place of the user's call at its end."""
    return message + at(users_call().place)


def mistake(message: str) -> TopologyError:
    """Return the error of a wrong call, which names its place."""
    return TopologyError(located(message))


def wrong(parameter: str, expected: str, value: object, hint: str = "") -> TopologyError:
    """Return the error for a wrong argument, with function, parameter and place."""
    call = users_call()
    advice = f"; {hint}" if hint else ""
    return TopologyError(f"{call.function}: {parameter} must be {expected}, not {shown(value)}{advice}{at(call.place)}")


@contextlib.contextmanager
def placed(place: str) -> Iterator[None]:
    """Add a place to errors that are raised in this block and name none."""
    try:
        yield
    except (ConfigError, TopologyError) as error:
        if place and " (at " not in str(error):
            error.args = (f"{error}{at(place)}",)  # the class may be the user's, and take other arguments
        raise


def shown(value: object, longest: int = 80) -> str:
    """Return a value as a message shows it."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {_described(value)}"
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"


# Arguments.


def option(value: T | None, parameter: str, kind: type[T]) -> T:
    """Return the options that the user gave, or the default ones.

    Raises:
        TopologyError: they are of another kind.
    """
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise wrong(parameter, f"a {kind.__name__}", value, hint_for(value, kind))
    return value


def hint_for(value: object, kind: type) -> str:
    """Return what to write instead of a value where options of this kind are expected, if that is clear."""
    name = getattr(value, "name", None) if type(value).__name__ == "Named" else value
    if isinstance(name, str) and hasattr(kind, "as_"):
        return f"write {kind.__name__}.as_({name!r})"
    if (is_serde(value) or isinstance(value, type | tuple)) and hasattr(kind, "with_"):
        return f"write {kind.__name__}.with_(…)"
    return ""


def instance(value: object, parameter: str, kinds: type | tuple[type, ...], expected: str, hint: str = "") -> None:
    """Check the type of an argument.

    Raises:
        TopologyError: it has another one.
    """
    if not isinstance(value, kinds):
        raise wrong(parameter, expected, value, hint)


def whole(value: object, parameter: str, expected: str) -> int:
    """Return a whole number, which may be numpy's for example, as an int.

    Raises:
        TopologyError: it is something else.
    """
    if not isinstance(value, SupportsIndex):
        raise wrong(parameter, expected, value)
    return operator.index(value)


LEGAL_IN_TOPICS: Final = re.compile(r"[a-zA-Z0-9._-]+")
LONGEST_NAME: Final = 249


def checked_name(name: str) -> str:
    """Return a name if it may be part of a topic's name.

    Raises:
        TopologyError: it is empty, `.`, `..`, longer than 249 characters, or has characters other than ASCII letters, digits,
            `.`, `_` and `-`.
    """
    if not isinstance(name, str):
        raise wrong("the name", "a text", name)
    if not name:
        raise mistake("A name must not be empty")
    if name in (".", ".."):
        raise mistake(f"{name!r} cannot be a name")
    if len(name) > LONGEST_NAME:
        raise mistake(f"Name {name!r} has {len(name)} characters; {LONGEST_NAME} is the most a topic name can have")
    if not LEGAL_IN_TOPICS.fullmatch(name):
        raise mistake(f"Name {name!r} is illegal: only ASCII letters and digits, '.', '_' and '-' are allowed")
    return name


MAX_TIMESTAMP: Final = 2**63 - 1


def timestamp_ms(value: object, what: Callable[[], str], minimum: int = 0) -> int:
    """Return a timestamp that user code has made, which may be numpy's for example, as an int.

    Args:
        value: the given value.
        what: returns a description for the message; called only if something is wrong.
        minimum: the smallest allowed value.

    Raises:
        InvalidTimestampError: it is no whole number of milliseconds that fits into 8 bytes, or is less than `minimum`.
    """
    millis = operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else None
    if millis is None or not minimum <= millis <= MAX_TIMESTAMP:
        least = "-2**63" if minimum < -1 else minimum
        raise InvalidTimestampError(
            f"{what()} must be whole milliseconds, an int from {least} to 2**63-1, not {shown(value)}"
        )
    return millis


def is_serde(value: object) -> bool:
    """Return whether a value is a serde, and not the class of one."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("serialize", "deserialize", "configure")
    )


def serdes(**given: object) -> None:
    """Check serdes, by the names of their parameters; None means the default.

    Raises:
        TopologyError: one is something else.
    """
    for parameter, value in given.items():
        if value is None or is_serde(value):
            continue
        if not isinstance(value, type):
            hint = "use one of Serdes, for example Serdes.string()"
        elif hasattr(value, "serialize"):
            hint = f"give an object: {value.__name__}()"
        else:
            hint = f"write Serdes.serde_from({value.__name__})"
        raise wrong(parameter, "a serde", value, hint)


def callback(function: object, parameter: str, arguments: str, instead: Mapping[str, str] | None = None) -> None:
    """Check that a user's function can be called as it will be.

    Args:
        function: the user's function.
        parameter: its name.
        arguments: the arguments of the call, for example `key, value`.
        instead: what to write for a function of other arguments.

    Raises:
        TopologyError: it is not callable, takes other arguments, or is an async function. Functions without a signature, which
            are written in C, pass.
    """
    expected = f"a function of {arguments or 'no arguments'}"
    if not callable(function):
        raise wrong(parameter, expected, function)
    if _is_async(function):
        raise wrong(parameter, expected, function, "it is async, and its result would be a coroutine")
    if not _takes(function, arguments):
        hints = (hint for other, hint in (instead or {}).items() if _takes(function, other))
        raise wrong(parameter, expected, function, next(hints, ""))


def processor_supplier(supplier: object, method: str, *, instead: Mapping[str, str] | None = None) -> None:
    """Check the supplier of a processor: the processor's class, or a function without arguments that returns a new processor.

    Args:
        supplier: the user's supplier.
        method: the method that the processor must have.
        instead: what to write for the classes with these names.

    Raises:
        TopologyError: it is a processor itself, a function with arguments, or a class of something else.
    """
    expected = "a class or a function that returns a new processor"
    if isinstance(supplier, type):
        for base in supplier.__mro__:
            if instead and base.__name__ in instead and base.__module__.startswith(_OURS):
                raise wrong("supplier", expected, supplier, instead[base.__name__])
        if not hasattr(supplier, method):
            raise wrong("supplier", expected, supplier, f"it has no method {method}")
        if not _takes(supplier, ""):
            raise wrong("supplier", expected, supplier, f"it needs arguments: write lambda: {supplier.__name__}(…)")
    elif hasattr(supplier, method) and not callable(supplier):
        name = type(supplier).__name__
        raise wrong(
            "supplier", expected, supplier, f"every task needs its own: give the class {name}, or lambda: {name}(…)"
        )
    else:
        callback(
            supplier, "supplier", "", {"record": "it takes no record: records go to the processor that it returns"}
        )


def new_processors(supplier: Callable[[], object], node: str) -> None:
    """Check that a supplier gives every task a processor of its own.

    Raises:
        TopologyError: it gives the same object again.
    """
    only = _given_again(supplier)
    if only is not None:
        name = (only if isinstance(only, type) else type(only)).__name__
        raise mistake(
            f"The supplier of node {node} gives the same object each time, {shown(only)}, in which the state of all tasks would "
            f"mix: give the class {name}, or lambda: {name}(…)"
        )


def new_stores(make: Callable[[], object], maker: str, store: str) -> None:
    """Check that a supplier or builder gives every task a store of its own.

    Args:
        make: returns a store.
        maker: its kind, for the message.
        store: its name.

    Raises:
        TopologyError: it gives the same object again.
    """
    only = _given_again(make)
    if only is not None:
        raise mistake(
            f"The {maker} of store {store} gives the same object each time, {shown(only)}, in which the state of all tasks would "
            "mix: return a new store"
        )


def _given_again(make: Callable[[], object]) -> object:
    """Return the object that a function returns every time; None if it makes new ones.

    As in Java it is called twice to find out. A class is not, unless it decides itself what a call returns. A function that
    fails is left to the tasks: a topology is also built where it is only described, without the program's secrets for instance.
    """
    kind = type(make)
    if issubclass(kind, type) and kind.__call__ is type.__call__ and getattr(make, "__new__", None) is object.__new__:
        return None
    try:
        first = make()
        return first if first is make() else None
    except Exception:
        return None


def store_builder(value: object) -> None:
    """Check the builder of a store.

    Raises:
        TopologyError: it is something else, such as a store supplier.
    """
    if isinstance(value, type) or not (hasattr(value, "name") and hasattr(value, "logging_enabled")):
        hint = "wrap the supplier: Stores.key_value_store_builder(supplier, key_serde, value_serde) for example"
        raise wrong("store", "a store builder", value, hint if hasattr(value, "get") else "Stores makes them")


def _is_async(function: object) -> bool:
    try:
        return inspect.iscoroutinefunction(function)
    except TypeError:  # a mock that passes for a function has no code
        return False


def _takes(function: Callable[..., object], arguments: str) -> bool:
    try:  # what a decorated function takes is up to its decorator
        signature = inspect.signature(function, follow_wrapped=False)
    except Exception:  # a function in C has none, and annotations may refer to what only type checkers import
        return True
    try:
        signature.bind(*filter(None, arguments.split(", ")))
    except TypeError:
        return False
    return True


def _described(function: object) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        return f"{name}({', '.join(inspect.signature(function, follow_wrapped=False).parameters)})"  # type: ignore[arg-type]
    except Exception:
        return str(name)


# Names.


def nearest(name: str, known: list[str]) -> str | None:
    """Return the known name that is most like a name, which may be Java's, or None.

    >>> nearest("mapValues", ["map", "map_values"]), nearest("String", ["string"]), nearest("other", ["map"])
    ('map_values', 'string', None)
    """
    wanted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    wanted = _RENAMED.get(wanted, wanted) if wanted not in known else wanted
    by_lower = {each.lower(): each for each in known}
    near = [wanted] if wanted in by_lower else difflib.get_close_matches(wanted, by_lower, 1, 0.7)
    return by_lower[near[0]] if near else None


def did_you_mean(name: str, known: list[str]) -> str:
    """Return a hint to the known name that is most like a name, or nothing."""
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def _no_attribute(kind: type, name: str) -> AttributeError:
    text = f"{kind.__name__} has no attribute {name!r}"
    if not name.startswith("_"):  # others are looked up by Python itself, and often
        elsewhere: Mapping[str, str] = getattr(kind, "_ELSEWHERE", {})
        if name in elsewhere:
            text = located(f"{text}; {elsewhere[name]}")
        else:
            text = located(text + did_you_mean(name, [each for each in dir(kind) if not each.startswith("_")]))
    return AttributeError(text, name=name)  # with `obj`, Python would add its own guess


class _SuggestingType(ABCMeta):  # so that users' classes can derive from ABC too
    if not TYPE_CHECKING:

        def __getattr__(cls, name):  # noqa: ANN001, ANN204
            raise _no_attribute(cls, name)


class Suggesting(metaclass=_SuggestingType):
    """A class that answers to a wrong name, such as Java's, with the right one."""

    __slots__ = ()
    _ELSEWHERE: ClassVar[Mapping[str, str]] = {}
    """Names of other classes for which users look here, and how to get there."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):  # noqa: ANN001, ANN204
            raise _no_attribute(type(self), name)
