"""Revisions: the part of a spec that pods depend on, identified by its hash.

What only the operator acts on is left out, so that scaling, suspending or another upgrade policy starts no upgrade. Defaults are
left out too, whether written or not, so that an operator that knows more fields does not make all applications roll.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from millrace.config import GroupProtocol
from millrace.manifest import StreamsAppSpec
from millrace_operator.children.config_maps import MANIFEST_KEY
from millrace_operator.model import Json, Object

_NOT_OF_PODS: Final = (
    ("replicas",),
    ("state",),
    ("upgrade",),
    ("handover",),
    ("autoscaling",),
    ("deletionPolicy",),
    ("internalTopics", "deletionPolicy"),
    ("internalTopics", "management"),
    ("standby", "catchUpTimeout"),
    ("storage", "size"),
    ("storage", "storageClassName"),
    ("storage", "retention"),
    ("podDisruptionBudget",),
    ("networkPolicy",),
    ("observability", "metrics", "podMonitor", "interval"),
    ("observability", "metrics", "podMonitor", "labels"),
)


_OF_THE_GROUP: Final = (("standby", "replicas"), ("membership", "sessionTimeout"))
"""Settings that the group has in the brokers, and not the pods, if the brokers assign the tasks."""


def _not_of_pods(spec: StreamsAppSpec) -> tuple[tuple[str, ...], ...]:
    """Return the fields that pods do not depend on."""
    by_brokers = spec.kafka.group_protocol is GroupProtocol.STREAMS
    return _NOT_OF_PODS + (_OF_THE_GROUP if by_brokers else ())


def pods_part(spec: StreamsAppSpec) -> Json:
    """Return the part of a spec that pods depend on, in the manifest's names, without defaults."""
    content = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for path in _not_of_pods(spec):
        _remove(content, path)
    return content


def _remove(content: Json, path: tuple[str, ...]) -> None:
    head, *rest = path
    if not rest:
        content.pop(head, None)
        return
    inner = content.get(head)
    if isinstance(inner, dict):
        _remove(inner, tuple(rest))
        if not inner:
            del content[head]


def revision_of(spec: StreamsAppSpec) -> str:
    """Return the revision of a spec: ten hexadecimal digits."""
    canonical = json.dumps(pods_part(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def spec_of(config_map: Object) -> StreamsAppSpec | None:
    """Return the spec that a revision's ConfigMap holds; None if this operator cannot read it."""
    try:
        return _parsed(config_map["data"][MANIFEST_KEY])
    except (KeyError, TypeError):
        return None


@lru_cache(maxsize=1_024)  # a pass asks for the revision of every pod
def _parsed(manifest: str) -> StreamsAppSpec | None:
    try:
        return StreamsAppSpec.model_validate(json.loads(manifest)["spec"])  # YAML to its readers, but written as JSON
    except (KeyError, TypeError, json.JSONDecodeError, ValidationError):
        return None


def as_of_revision(revision_spec: StreamsAppSpec, newest: StreamsAppSpec) -> StreamsAppSpec:
    """Return a revision's spec, with everything that pods do not depend on taken from the newest spec.

    Args:
        revision_spec: What its pods were given.
        newest: The spec as it stands now.
    """
    content = pods_part(revision_spec)
    current = newest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for path in _not_of_pods(revision_spec):
        _copy(current, content, path)
    return StreamsAppSpec.model_validate(content)


def _copy(source: Object, target: Json, path: tuple[str, ...]) -> None:
    head, *rest = path
    if head not in source:
        return
    if rest:
        inner = target.setdefault(head, {})
        _copy(source[head], inner, tuple(rest))
        if not inner:
            del target[head]
    else:
        target[head] = source[head]
