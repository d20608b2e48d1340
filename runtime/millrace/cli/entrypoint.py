"""Imports the user's function and calls it to build the topology; an error names the line of the user's code.

An entrypoint is `package.module:callable` or, to try things out, a file: `app.py` or `app.py:callable`, where the callable
is `topology` by default. The callable takes nothing, a `StreamsBuilder`, a `StreamsBuilder` and the application's own
configuration, or only the configuration, under the name `config`. It returns a `Topology`, a `StreamsBuilder`, or nothing if
it was given a builder. A file's folder and the working directory are importable, as with `python app.py` and `python -m`.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.errors import EntrypointError, StreamsError
from millrace.loading import LoadError, import_attribute, summary, where_raised

if TYPE_CHECKING:
    from millrace.config import StreamsConfig
    from millrace.dsl import StreamsBuilder
    from millrace.topology import Topology

DEFAULT_CALLABLE = "topology"


def load_topology(
    entrypoint: str,
    *,
    streams_config: StreamsConfig | None = None,
    app_config: Mapping[str, object] | None = None,
    args: Sequence[str] = (),
    folders: Sequence[Path] = (),
) -> Topology:
    """Import an entrypoint, call it and return the topology it built.

    Args:
        entrypoint: `package.module:callable`, or a file with or without `:callable`.
        streams_config: Settings that change how the DSL compiles, such as `topology.optimization`.
        app_config: The application's own configuration, `spec.app.config` of a manifest.
        args: The program's `sys.argv[1:]`.
        folders: Where else to look for modules, after the working directory.

    Raises:
        EntrypointError: The text, module, attribute, call or result is wrong; the message says which, where, and what to
            write instead.
    """
    module_name, attribute, folder = parse(entrypoint)
    for path in (*map(str, reversed(folders)), str(Path.cwd()), folder):
        if path and path not in sys.path:
            sys.path.insert(0, path)
    sys.argv = [module_name, *args]
    try:
        function = import_attribute(module_name, attribute, folder=folder)
    except LoadError as error:
        raise EntrypointError(f"{entrypoint}: {error}") from error.__cause__
    if not callable(function):
        raise EntrypointError(
            f"{entrypoint}: `{attribute}` is not callable but of type {type(function).__name__}: "
            "name a function that returns the topology"
        )
    return _call(function, entrypoint, app_config or {}, streams_config)


def parse(entrypoint: str) -> tuple[str, str, str | None]:
    """Return the module, the attribute and, for a file, its folder.

    >>> parse("shop.orders:topology")
    ('shop.orders', 'topology', None)

    Raises:
        EntrypointError: It has neither form, or the file does not exist.
    """
    module, colon, attribute = entrypoint.rpartition(":")
    if not colon:
        module, attribute = entrypoint, ""
    if module.endswith(".py"):
        path = Path(module)
        if not path.is_file():
            raise EntrypointError(f"There is no file {module} (looked from {Path.cwd()})")
        if not path.stem.isidentifier():
            raise EntrypointError(f"{path.name} cannot be imported: a module's name has letters, digits and `_` only")
        return path.stem, attribute or DEFAULT_CALLABLE, str(path.resolve().parent)
    steps = [*module.split("."), *attribute.split(".")]
    if not all(step.isidentifier() for step in steps):
        example = module if colon and module.replace(".", "_").isidentifier() else entrypoint.partition(":")[0]
        example = example if all(step.isidentifier() for step in example.split(".")) else "wordcount"
        raise EntrypointError(
            f"`{entrypoint}` is not an entrypoint: write `package.module:callable`, for example `{example}:{DEFAULT_CALLABLE}`"
        )
    return module, attribute, None


def _call(
    function: Callable[..., object],
    entrypoint: str,
    app_config: Mapping[str, object],
    streams_config: StreamsConfig | None,
) -> Topology:
    from millrace.dsl import StreamsBuilder
    from millrace.topology import Topology

    builder = StreamsBuilder()
    arguments = _arguments(function, entrypoint, builder, app_config)
    try:
        result = function(*arguments)
        if result is None and arguments and arguments[0] is builder:
            result = builder
        if isinstance(result, StreamsBuilder):
            result = result.build(streams_config)
    except StreamsError as error:
        place = where_raised(error)
        raise EntrypointError(f"{entrypoint}: {error}" + ("" if place in str(error) else f" (at {place})")) from error
    except (Exception, SystemExit) as error:
        place, told = where_raised(error), summary(error)
        raise EntrypointError(f"{entrypoint} raised {told}" + ("" if place in told else f" at {place}")) from error
    if not isinstance(result, Topology):
        wanted = "a Topology or a StreamsBuilder" + (
            ", or nothing if it fills the one it is given" if arguments else ""
        )
        raise EntrypointError(f"{entrypoint} returned {type(result).__name__}: it must return {wanted}")
    return result


def _arguments(
    function: Callable[..., object], entrypoint: str, builder: StreamsBuilder, app_config: Mapping[str, object]
) -> list[object]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    positional = [item for item in parameters if item.kind in {item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD}]
    wanted = list(itertools.takewhile(lambda item: item.default is item.empty or item.name == "config", positional))
    required_by_name = [item for item in parameters if item.kind is item.KEYWORD_ONLY and item.default is item.empty]
    if [item.name for item in wanted] == ["config"]:
        offered: list[object] = [app_config]
    else:
        offered = [builder, app_config]
    if len(wanted) > len(offered) or required_by_name:
        raise EntrypointError(
            f"{entrypoint} has the parameters {inspect.signature(function)}: it may take nothing, a StreamsBuilder, "
            "or a StreamsBuilder and the mapping `config`"
        )
    return offered[: len(wanted)]
