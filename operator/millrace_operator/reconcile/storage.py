"""Volumes: growing them, cleaning up after scaling, and telling when they fill.

A claim can only grow, and a StatefulSet cannot change the size it makes claims with. So claims are resized one by one, and the
StatefulSet is deleted under its running pods and made anew; the pods notice nothing. Claims are deleted only where
`storage.retention` says so, and never while a pod may come back to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millrace.manifest import StreamsAppSpec
from millrace.manifest.fields import quantity_value
from millrace_operator.children import naming
from millrace_operator.children.stateful_set import IMMUTABLE_FIELDS
from millrace_operator.model import Delete, Key, Object, ResizeClaim
from millrace_operator.reconcile.applying import is_part_of
from millrace_operator.reconcile.reasons import Reason
from millrace_operator.reconcile.turn import ConditionStatus, Turn

FULL_PERCENT: Final = 85


def with_possible_storage(turn: Turn, spec: StreamsAppSpec) -> StreamsAppSpec:
    """Return the spec with the storage that the StatefulSet can have: the class it has, and no size it cannot get."""
    template = _claim_template(turn)
    if template is None:
        return spec
    size = _size(template)
    possible = spec.storage.size if _may_grow(turn, size, spec.storage.size) else size
    storage_class = template["spec"].get("storageClassName")
    change = {"size": possible, "storage_class_name": storage_class or spec.storage.storage_class_name}
    return spec.model_copy(update={"storage": spec.storage.model_copy(update=change)})


def _may_grow(turn: Turn, size: str, wanted: str) -> bool:
    return quantity_value(wanted) > quantity_value(size) and turn.observed.storage_class_expandable is not False


def needs_recreation(turn: Turn, wanted: Mapping[str, Any]) -> bool:
    """Return whether the StatefulSet differs from what is wanted in a field that cannot be changed."""
    seen = turn.view.stateful_set
    return seen is not None and any(
        not is_part_of(wanted["spec"][name], seen["spec"].get(name), name) for name in IMMUTABLE_FIELDS
    )


def resize_claims(turn: Turn) -> bool:
    """Have claims grow to the wanted size, settle StorageHealthy, and return whether all have it.

    One that is not bound yet cannot be changed, which the API server refuses: its turn comes when it is.
    """
    wanted = turn.spec.storage.size
    template = _claim_template(turn)
    small = [
        claim
        for _, claim in sorted(turn.view.claims.items())
        if claim.bound and not claim.terminating and quantity_value(claim.asked) < quantity_value(wanted)
    ]
    if template is not None and quantity_value(_size(template)) > quantity_value(wanted):
        message = f"storage.size is {wanted}, but volumes have {_size(template)} and cannot shrink. Set the size back."
        turn.settle("False", Reason.SHRINKING_REFUSED, message)
        return True
    if small and turn.observed.storage_class_expandable is False:
        message = (
            f"storage.size is {wanted}, but claim {small[0].name} has {small[0].asked} and its class lets no volume grow. "
            "Set allowVolumeExpansion: true on the class if its driver can, or set the size back."
        )
        turn.settle("False", Reason.EXPANSION_UNSUPPORTED, message)
        return True
    turn.actions.extend(ResizeClaim(claim.name, claim.uid, wanted) for claim in small)
    _settle_use(turn)
    return not small


def _settle_use(turn: Turn) -> None:
    used = max_used_percent(turn)
    before = turn.condition("StorageHealthy")
    unbound = [claim.name for _, claim in sorted(turn.view.claims.items()) if not claim.bound]
    if used is not None and used > FULL_PERCENT:
        message = (
            f"A volume is about {used} % full, of {turn.spec.storage.size}. Raise storage.size, or add replicas so that "
            "each holds fewer tasks."
        )
        turn.settle("False", Reason.VOLUME_NEARLY_FULL, message)
    elif used is None and before is not None and before.reason == Reason.VOLUME_NEARLY_FULL and turn.view.has_pods:
        turn.settle("False", Reason.VOLUME_NEARLY_FULL, before.message)  # which may be why no pod answers, or is ready
    elif unbound and (waiting := [pod for pod in turn.view.pods.values() if not pod.ready]):
        status: ConditionStatus = "False" if any(pod.is_old(turn.now) for pod in waiting) else "Unknown"
        turn.settle(status, Reason.VOLUME_PENDING, f"Claim {unbound[0]} has no volume yet. See its events.")
    else:
        turn.settle("True", Reason.VOLUMES_FIT)


def max_used_percent(turn: Turn) -> int | None:
    """Return how full the fullest volume is, in steps of five."""
    used = [
        item.storage_used_percent for item in turn.observed.instances.values() if item.storage_used_percent is not None
    ]
    return min(100, 5 * round(max(used) / 5)) if used else None


def delete_claims_beyond(turn: Turn, wanted: int) -> None:
    """Delete the claims of pods that scaling has removed, if `storage.retention.whenScaled` says so.

    Args:
        turn: The turn.
        wanted: How many replicas there are to be while the application runs; suspending it is no scaling.
    """
    current = turn.view.replicas
    if turn.spec.storage.retention.when_scaled != "Delete" or current is None or current > wanted:
        return
    for index, claim in sorted(turn.view.claims.items()):
        if index >= wanted and index not in turn.view.pods and not claim.terminating:
            turn.actions.append(Delete(Key("PersistentVolumeClaim", claim.name), claim.uid))


def _claim_template(turn: Turn) -> Object | None:
    seen = turn.view.stateful_set
    templates = [] if seen is None else seen["spec"].get("volumeClaimTemplates", [])
    prefix = naming.claim("", 0).partition("-")[0]
    return next((item for item in templates if item["metadata"]["name"] == prefix), None)


def _size(template: Object) -> str:
    return str(template["spec"]["resources"]["requests"]["storage"])
