"""Regenerates the lock file of the jars: run `python -m millrace.dev._jar_lock` after changing the roots or versions here.

Every root is resolved on its own, as Maven resolves a dependency (nearest version wins, the root's own management applies),
and a bundle is the union of its roots. The result is committed and reviewed like code; nothing resolves at run time.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.dev.jars import KAFKA_VERSION, LOCK_FILE, Bundle

if TYPE_CHECKING:
    from jgo.maven import Artifact, MavenContext

_LOG4J = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
ROOTS = {
    Bundle.KAFKA_BROKER: (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", _LOG4J),
    Bundle.KAFKA_STREAMS: (f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}", _LOG4J),
    Bundle.KAFKA_STREAMS_TEST: (f"org.apache.kafka:kafka-streams-test-utils:{KAFKA_VERSION}", _LOG4J),
    Bundle.ECJ: ("org.eclipse.jdt:ecj:3.46.0",),
}
_RUNTIME_SCOPES = frozenset({None, "compile", "runtime"})


def make_lock(context: MavenContext) -> str:
    """Resolve and download all bundles and return the text of the lock file.

    Args:
        context: The repository to use and the directory to download to.
    """
    bundles: dict[str, list[str]] = {}
    jars: dict[str, dict[str, str | int]] = {}
    for bundle, roots in ROOTS.items():
        coordinates: dict[str, Artifact] = {}
        for root in roots:
            itself, transitive = context.resolver.resolve([context.create_dependency(root)])
            jars_of_root = [found.artifact for found in (*itself, *transitive) if found.scope in _RUNTIME_SCOPES]
            coordinates |= {f"{jar.groupId}:{jar.artifactId}:{jar.version}": jar for jar in jars_of_root}
        bundles[bundle] = sorted(coordinates)
        for coordinate, artifact in coordinates.items():
            content = artifact.resolve().read_bytes()
            jars[coordinate] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    return json.dumps({"bundles": bundles, "jars": dict(sorted(jars.items()))}, indent=2) + "\n"


def main() -> None:
    """Write the lock file in place."""
    from jgo.maven import MavenContext  # noqa: PLC0415 (an extra's dependency)

    with tempfile.TemporaryDirectory() as cache:
        text = make_lock(MavenContext(repo_cache=Path(cache)))
    target = Path(str(resources.files(__package__).joinpath(LOCK_FILE)))
    target.write_text(text)
    sys.stdout.write(f"{target} has {len(json.loads(text)['jars'])} jars\n")


if __name__ == "__main__":
    main()
