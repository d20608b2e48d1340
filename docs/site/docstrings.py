"""Shows the examples in docstrings as code, wherever they are."""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

_EXAMPLE: Final = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)


class Examples(griffe.Extension):
    """Turns doctests into fenced code, as Markdown would take their prompts for quotations, and `Example::` into `Example:`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value.replace("::\n", ":\n"))


def _fenced(match: re.Match[str]) -> str:
    indent = match[1]
    return f"{indent}```pycon\n{match[0]}\n{indent}```"
