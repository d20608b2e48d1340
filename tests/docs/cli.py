"""Generates `docs/cli.md`, the command line reference, from the commands' own help: `python -m tests.docs.cli`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import typer.main
from tests.docs.inventory import ROOT

from millrace.cli.app import app

PAGE: Final = ROOT / "docs" / "cli.md"

_HEAD: Final = """# The command line

`millrace` takes an application as a manifest (`-f streamsapp.yaml`) or as an entrypoint: `package.module:callable`, or a file.
Every command has `--help`. This page is generated from that help by `python -m tests.docs.cli`; a test keeps it up to date.

```sh
millrace describe -f streamsapp.yaml   # look at it
millrace plan -f streamsapp.yaml       # what it needs
millrace dev up -f streamsapp.yaml     # run it here, with its own Kafka
millrace explain wordcount             # what it does in Kubernetes, and what is wrong
millrace top wordcount                 # watch it
```

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed while running |
| 2 | nothing ran: the command line, the manifest, the settings, the entrypoint or the topology is wrong |
| 3 | `plan --diff` says that a reset is needed |
| 130 | interrupted |
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command by its whole name, those of a group after it."""
    pending = [("millrace", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop()
        yield name, command
        pending += [(f"{name} {each}", child) for each, child in reversed(getattr(command, "commands", {}).items())]


def render() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *(_section(name, command) for name, command in commands())]).rstrip() + "\n"


def _section(name: str, command: Any) -> str:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
    options = [parameter for parameter in shown if parameter.param_type_name == "option" and parameter.name != "help"]
    usage = [name, *("[OPTIONS]" for _ in options[:1]), *map(_argument, arguments)]
    if hasattr(command, "commands"):
        usage.append("COMMAND")
    parts = [f"## {name}", f"```text\n{' '.join(usage)}\n```", inspect.cleandoc(command.help or "")]
    rows = [f"| `{_argument(each)}` | {_cell(each.help)} |" for each in arguments]
    rows += [f"| {_names(each)} | {_cell(each.help)}{_default(each)} |" for each in options]
    if rows:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).upper().strip("[]….") + ("…" if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _names(option: Any) -> str:
    names = [*option.opts, *option.secondary_opts]
    value = "" if option.is_flag else f" {_value(option)}"
    return ", ".join(f"`{name}{value}`" for name in sorted(names, key=len, reverse=True)).replace("|", "\\|")


def _value(option: Any) -> str:
    kind = option.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    return option.metavar or {str: "TEXT", int: "NUMBER"}.get(kind, "PATH")


def _default(option: Any) -> str:
    default = option.default
    if option.is_flag or option.show_default is False or default is None or callable(default) or default in ((), []):
        return ""
    return f" Default: `{getattr(default, 'value', default)}`."


def _cell(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|").strip()


def main() -> int:
    """Write the page."""
    PAGE.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
