"""`python -m e2e.images`: provide all that a test run needs and that can be kept: packages, programs and images."""

from __future__ import annotations

import sys

from e2e.cluster.cluster import prepare
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import phase, say
from e2e.images.catalogue import build_images

if __name__ == "__main__":
    try:
        prepare()
        with phase("Building the images"):
            build_images()
    except ClusterError as error:
        say(f"Error: {error}")
        sys.exit(1)
