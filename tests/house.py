"""Measures the structure of the runtime and of the operator: `python -m tests.house`.

The figures are no goals. They show what has become of the structure since someone last looked: more names to know before anything
can be changed, code that stands twice, modules that import each other.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = {"runtime": "millrace", "operator": "millrace_operator"}
_SAME = 8
"""How many lines have to be the same, blank ones and imports aside."""
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Return the sets of modules that import each other, directly or through others."""
    seen = {module: graph.find_upstream_modules(module) for module in graph.modules}
    found = {frozenset({module, *(at for at in seen[module] if module in seen[at])}) for module in seen}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def upward(graph: grimp.ImportGraph, package: str) -> list[str]:
    """Return about the fewest imports without which the children of a package, at any depth, use each other in one direction."""
    packages = [module for module in graph.modules if f"{module}.".startswith(f"{package}.")]
    return sorted(f"{a} -> {b}" for module in packages for a, b in graph.nominate_cycle_breakers(module))


def named_once(trees: Mapping[str, ast.Module]) -> int:
    """Count the private functions and methods that their module names in one place only."""
    count = 0
    for tree in trees.values():
        nodes = list(ast.walk(tree))
        named = Counter(getattr(node, "id", getattr(node, "attr", "")) for node in nodes)
        private = [node.name for node in nodes if isinstance(node, _FUNCTION) and node.name.startswith("_")]
        count += sum(named[name] == 1 for name in private if not name.endswith("__"))
    return count


def duplicates(texts: Mapping[str, str]) -> list[str]:
    """Return where lines stand that stand elsewhere, too."""
    first: dict[tuple[str, ...], tuple[str, int]] = {}
    found = []
    for path, text in texts.items():
        numbered = enumerate(map(str.strip, text.splitlines()), 1)
        lines = [(number, line) for number, line in numbered if line and not line.startswith(("import ", "from "))]
        before = ("", 0)
        for at in range(len(lines) - _SAME + 1):
            place = first.setdefault(tuple(line for _, line in lines[at : at + _SAME]), (path, at))
            goes_on = place == (before[0], before[1] + 1)
            before = place if place != (path, at) else ("", 0)
            if before[0] and not goes_on:
                found.append(f"{path}:{lines[at][0]} as in {place[0]}")
    return found


def measure(folder: str, package: str, graph: grimp.ImportGraph) -> tuple[dict[str, object], list[str]]:
    """Return the figures of a package, and lines that say what is behind some of them."""
    paths = sorted((ROOT / folder / package).rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    total, longest = sum(lines.values()), max(lines, key=lambda path: lines[path])
    names = sum(isinstance(node, _FUNCTION | ast.ClassDef) for tree in trees.values() for node in tree.body)
    same, up = duplicates(texts), upward(graph, package)
    ring = [" ".join(circle) for circle in circles(graph) if circle[0].split(".")[0] == package]
    figures = {
        "modules": len(lines),
        "lines": total,
        "mean module": total // len(lines),
        "longest module": lines[longest],
        "functions and classes of modules per 1,000 lines": round(1000 * names / total, 1),
        "private functions that are named once": named_once(trees),
        "runs of lines that stand elsewhere, too": len(same),
        "circles of modules": len(ring),
        "upward imports": len(up),
    }
    details = [("longest", [longest]), ("the same", same), ("circle", ring), ("upward", up)]
    return figures, [f"{folder}, {kind}: {one}" for kind, found in details for one in found]


if __name__ == "__main__":
    whole = grimp.build_graph(*PACKAGES.values(), cache_dir=None)
    measured = [measure(folder, package, whole) for folder, package in PACKAGES.items()]
    print(*(line for _, details in measured for line in details), sep="\n")
    print(f"{'':50}", *(f"{folder:>10}" for folder in PACKAGES))
    for row in measured[0][0]:
        print(f"{row:50}", *(f"{figures[row]:>10,}" for figures, _ in measured))
