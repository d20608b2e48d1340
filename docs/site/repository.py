"""Fits pages that are written to be read in the repository into the site.

Some of the site's pages are outside `docs/`, and pages link to files that are not in the site. A link to a page becomes a link
within the site, one to a file beside an example's README a link to that file's text, which is put at the end of the page, and one
to any other file of the repository plain text. A link that leads nowhere is left alone: mkdocs reports it.
"""

from __future__ import annotations

import posixpath
import re
from functools import partial
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples"
_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)")
_LANGUAGES: Final = {".py": "python", ".yaml": "yaml", ".avsc": "json"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside `docs/`, under their paths in the repository."""
    for page in (ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(EXAMPLES.glob("*/README.md"))):
        files.append(File.generated(config, page.relative_to(ROOT).as_posix(), abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Point a page's links to where the site has what they lead to."""
    source = Path(page.file.abs_src_path).resolve()
    pages = {
        Path(file.abs_src_path).resolve(): file.src_uri
        for file in files
        if file.abs_src_path and file.inclusion.is_included()
    }
    shown: list[Path] = []
    changed = _LINK.sub(partial(_link, source=source, here=page.file.src_uri, pages=pages, shown=shown), markdown)
    return "\n".join([changed, *(_text_of(path) for path in dict.fromkeys(shown))])


def _link(match: re.Match[str], *, source: Path, here: str, pages: dict[Path, str], shown: list[Path]) -> str:
    text, anchor = match[1], match[3] or ""
    target = (source.parent / match[2]).resolve()
    if target not in pages and (target / "README.md") in pages:
        target /= "README.md"
    if target in pages:
        return f"[{text}]({posixpath.relpath(pages[target], posixpath.dirname(here) or '.')}{anchor})"
    if (
        target.parent == source.parent
        and EXAMPLES in target.parents
        and target.suffix in _LANGUAGES
        and target.is_file()
    ):
        shown.append(target)
        return f"[{text}](#{_anchor(target)})"
    return text if target.exists() else match[0]


def _text_of(path: Path) -> str:
    return f"## {path.name} {{ #{_anchor(path)} }}\n\n```{_LANGUAGES[path.suffix]}\n{path.read_text()}```\n"


def _anchor(path: Path) -> str:
    return path.name.replace(".", "-")
