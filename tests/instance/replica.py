"""The word count as a separate program: `replica.py {"config": …, "source": …, "sink": …}`."""

from __future__ import annotations

import json
import logging
import sys

from tests.instance.support import word_count

from millrace.instance import run

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    spec = json.loads(sys.argv[1])
    sys.exit(run(word_count(spec["source"], spec["sink"]), spec["config"]))
