"""Which other StreamsApps are on an application's brokers: with the same `applicationId` they have the same group and topics.

Brokers are the same if their cluster has the same id. Before that is known of both, they are if any address is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millrace_operator.app.refs import Ref
from millrace_operator.children.config_maps import PLAN_KEY
from millrace_operator.children.naming import COMPONENT_LABEL
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.kinds import APPS, CONFIG_MAPS, PODS, STATEFUL_SETS
from millrace_operator.model import Desired, Neighbour, Object
from millrace_operator.reconcile.topics import needed_topics
from millrace_operator.reconcile.view import read_plan


def neighbours(
    desired: Desired, resources: Cache, children: Cache, cluster_id: Callable[[Ref], str | None]
) -> tuple[Neighbour, ...]:
    """Return the neighbours of an application.

    Args:
        desired: The application.
        resources: The cache of StreamsApps.
        children: The cache of their children.
        cluster_id: Returns the id of an application's Kafka cluster, None if it is not known yet.
    """
    application_id, servers = _application_id(desired.manifest), _servers(desired.manifest)
    here = cluster_id(Ref(APPS.kind, desired.namespace, desired.name))
    found = []
    for obj in resources.of_kind(APPS):
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        same_id = _application_id(spec) == application_id
        if metadata["uid"] == desired.uid or not (same_id or desired.deleting):
            continue
        namespace, name = metadata["namespace"], metadata["name"]
        there = cluster_id(Ref(APPS.kind, namespace, name))
        if here != there if here and there else not servers & _servers(spec):
            continue
        objects = children.of_app(namespace, name).values()
        found.append(
            Neighbour(
                namespace=namespace,
                name=name,
                uid=metadata["uid"],
                created=metadata.get("creationTimestamp") or "",
                same_id=same_id,
                runs=any(map(_is_or_has_pods, objects)),
                takes_over=namespace == desired.namespace and _predecessor(spec) == desired.name,
                topics=_topics(objects) if desired.deleting else frozenset(),
            )
        )
    return tuple(found)


def _application_id(spec: Mapping[str, Any]) -> str | None:
    return spec.get("applicationId")


def _servers(spec: Mapping[str, Any]) -> set[str]:
    return {str(server).lower() for server in (spec.get("kafka") or {}).get("bootstrapServers") or ()}


def _predecessor(spec: Mapping[str, Any]) -> str | None:
    name: str | None = ((spec.get("handover") or {}).get("from") or {}).get("name")
    return name


def _is_or_has_pods(obj: Object) -> bool:
    if obj["kind"] == STATEFUL_SETS.kind:
        return bool(obj["spec"].get("replicas", 1))
    labels = obj["metadata"].get("labels") or {}
    return bool(obj["kind"] == PODS.kind and labels.get(COMPONENT_LABEL) == "runtime")


def _topics(objects: Iterable[Object]) -> frozenset[str]:
    texts = [obj["data"][PLAN_KEY] for obj in objects if obj["kind"] == CONFIG_MAPS.kind and PLAN_KEY in obj["data"]]
    plans = [plan for plan in map(read_plan, texts) if plan is not None]
    return frozenset(name for plan in plans for name in needed_topics(plan))
