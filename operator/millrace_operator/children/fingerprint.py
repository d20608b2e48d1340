"""A fingerprint on a child of everything that was wanted of it.

An object in the API always has more than what was applied: defaults, status, others' fields. So whether it needs to be applied
again is decided by whether what is wanted is part of it, and that misses what is *no longer* wanted: a label, a peer's
selector. Its fingerprint is part of what is wanted, and differs then.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from millrace.manifest import GROUP

FINGERPRINT: Final = f"{GROUP}/fingerprint"
"""The annotation."""


def with_fingerprint(child: dict[str, Any]) -> dict[str, Any]:
    """Return a child with its fingerprint among its annotations.

    >>> one = with_fingerprint({"metadata": {"name": "a"}, "spec": {"x": 1}})
    >>> one == with_fingerprint({"metadata": {"name": "a"}, "spec": {"x": 1, "y": 2}})
    False
    """
    text = json.dumps(child, sort_keys=True, separators=(",", ":"))
    fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
    metadata = child["metadata"]
    annotations = {**metadata.get("annotations", {}), FINGERPRINT: fingerprint}
    return {**child, "metadata": {**metadata, "annotations": annotations}}
