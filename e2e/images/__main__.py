"""`python -m e2e.images`: provide all that `make e2e` needs and that can be kept: packages, programs and images.

With `--all`, also what only `make e2e-all` needs.
"""

from __future__ import annotations

import sys

from e2e.cluster.cluster import prepare
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import phase, say
from e2e.images.catalogue import build_images

_EVERYTHING = "--all" in sys.argv

if __name__ == "__main__":
    try:
        prepare(thorough=_EVERYTHING)
        with phase("Building the images"):
            build_images(with_spark=_EVERYTHING)
    except ClusterError as error:
        say(f"Error: {error}")
        sys.exit(1)
