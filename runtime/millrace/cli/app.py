"""The tree of commands, and how they report failure: one line that says what is wrong, one that says what to do.

Exit codes: 0 done; 1 failed while running; 2 nothing ran, because the command line, the manifest, the configuration, the
entrypoint or the topology is wrong (trying again does not help); 3 `plan --diff` says that a reset is needed; 130 interrupted.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from millrace import __version__
from millrace.cli import backfill, describe, dev, init, plan, reset, run
from millrace.cli.errors import report
from millrace.errors import StreamsError

INTERRUPTED = 130


class _Commands(TyperGroup):
    """Turns exceptions of any command into messages and exit codes."""

    def invoke(self, ctx: Any) -> object:
        try:
            return super().invoke(ctx)
        except StreamsError as error:
            raise typer.Exit(report(error, verbose=bool(ctx.params.get("verbose")))) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"millrace {__version__}")
        raise typer.Exit


@app.callback()
def millrace(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more, and show tracebacks for errors.")] = False,
    version: Annotated[  # noqa: ARG001 (handled by its callback)
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Kafka Streams for Python.

    Exit codes: 0 done · 1 failed while running · 2 wrong command line, manifest, configuration, entrypoint or topology ·
    3 `plan --diff` says that a reset is needed · 130 interrupted.
    """
    from millrace.cli.logs import configure

    configure(verbose=verbose)


def _be_verbose(context: typer.Context, wanted: bool) -> None:
    if wanted:
        from millrace.cli.logs import configure

        context.find_root().params["verbose"] = True
        configure(verbose=True)


_VERBOSE: Final = inspect.Parameter(
    "verbose",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option("--verbose", "-v", callback=_be_verbose, help="Log more, and show tracebacks for errors."),
    ],
)


def _with_verbose(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that takes `--verbose` too, as it may be given before or after the command's name."""
    given = inspect.signature(function, eval_str=True)

    @functools.wraps(function)
    def command(*arguments: Any, verbose: bool = False, **options: Any) -> Any:  # noqa: ARG001 (handled by its callback)
        return function(*arguments, **options)

    parameters = [*given.parameters.values(), _VERBOSE]
    command.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


app.command()(init.init)
app.command()(run.run)
app.command()(plan.plan)
app.command()(describe.describe)
app.command()(reset.reset)
app.command()(backfill.backfill)
app.add_typer(dev.app, name="dev")
for command in entry_points(group="millrace.commands"):  # from packages that this one must not import
    app.command(command.name)(command.load())
for registered in (*app.registered_commands, *dev.app.registered_commands):
    assert registered.callback is not None
    registered.callback = _with_verbose(registered.callback)
