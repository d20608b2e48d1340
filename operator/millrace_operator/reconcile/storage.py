"""Volumes: growing them, cleaning up after scaling, and reporting when they fill up.

A claim can only grow, and a StatefulSet cannot change the size it makes claims with. So claims are resized one by one, and the
StatefulSet is deleted underneath its running pods and recreated; the pods notice nothing. Claims are deleted only where
`storage.retention` says so, and never while a pod may come back to them.
"""

from __future__ import annotations

from typing import Final

from millrace.manifest import StreamsAppSpec
from millrace.manifest.fields import quantity_value
from millrace_operator.children import naming
from millrace_operator.children.stateful_set import IMMUTABLE_FIELDS
from millrace_operator.model import Delete, Key, Object, ResizeClaim
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import ConditionStatus, ReconcileContext
from millrace_operator.reconcile.drift import is_part_of

FULL_PERCENT: Final = 85


def with_possible_storage(context: ReconcileContext, spec: StreamsAppSpec) -> StreamsAppSpec:
    """Return the spec with the storage that the StatefulSet can have: the class it has, and no size it cannot get."""
    template = _claim_template(context)
    if template is None:
        return spec
    (size, storage_class), wanted = template, spec.storage.size
    may_grow = quantity_value(wanted) > quantity_value(size) and context.observed.storage_class_expandable is not False
    change = {
        "size": wanted if may_grow else size,
        "storage_class_name": storage_class or spec.storage.storage_class_name,
    }
    return spec.model_copy(update={"storage": spec.storage.model_copy(update=change)})


def needs_recreation(context: ReconcileContext, wanted: Object) -> bool:
    """Return whether the StatefulSet differs from what is wanted in a field that cannot be changed."""
    seen = context.view.stateful_set
    return seen is not None and any(
        not is_part_of(wanted["spec"][name], seen["spec"].get(name), name) for name in IMMUTABLE_FIELDS
    )


def resize_claims(context: ReconcileContext) -> bool:
    """Enlarge claims to the wanted size, set StorageHealthy, and return whether all have it.

    The API server refuses to change a claim that is not bound yet, so it is enlarged once it is.
    """
    wanted = context.spec.storage.size
    template = _claim_template(context)
    small = [
        claim
        for _, claim in sorted(context.view.claims.items())
        if claim.bound and not claim.terminating and quantity_value(claim.asked) < quantity_value(wanted)
    ]
    if template is not None and quantity_value(template[0]) > quantity_value(wanted):
        message = f"storage.size is {wanted}, but volumes have {template[0]} and cannot shrink. Set the size back."
        context.set_condition("False", ConditionReason.SHRINKING_REFUSED, message)
        return True
    if small and context.observed.storage_class_expandable is False:
        message = (
            f"storage.size is {wanted}, but claim {small[0].name} has {small[0].asked} and its class does not let volumes grow. "
            "Set allowVolumeExpansion: true on the class if its driver can, or set the size back."
        )
        context.set_condition("False", ConditionReason.EXPANSION_UNSUPPORTED, message)
        return True
    context.actions.extend(ResizeClaim(claim.name, claim.uid, wanted) for claim in small)
    _settle_use(context)
    return not small


def _settle_use(context: ReconcileContext) -> None:
    used = max_used_percent(context)
    before = context.condition("StorageHealthy")
    unbound = [claim.name for _, claim in sorted(context.view.claims.items()) if not claim.bound]
    if used is not None and used > FULL_PERCENT:
        message = (
            f"A volume is about {used} % full, of {context.spec.storage.size}. Raise storage.size, or add replicas so that "
            "each holds fewer tasks."
        )
        context.set_condition("False", ConditionReason.VOLUME_NEARLY_FULL, message)
    elif (
        used is None
        and before is not None
        and before.reason == ConditionReason.VOLUME_NEARLY_FULL
        and context.view.has_pods
    ):
        context.set_condition(
            "False", ConditionReason.VOLUME_NEARLY_FULL, before.message
        )  # this may be why no pod answers or is ready
    elif unbound and (waiting := [pod for pod in context.view.pods.values() if not pod.ready]):
        status: ConditionStatus = "False" if any(pod.is_old(context.now) for pod in waiting) else "Unknown"
        context.set_condition(
            status, ConditionReason.VOLUME_PENDING, f"Claim {unbound[0]} has no volume yet. See its events."
        )
    else:
        context.set_condition("True", ConditionReason.VOLUMES_FIT)


def max_used_percent(context: ReconcileContext) -> int | None:
    """Return how full the fullest volume is, in steps of five."""
    used = [
        item.storage.used_percent
        for item in context.observed.instances.values()
        if item.storage.used_percent is not None
    ]
    return min(100, 5 * round(max(used) / 5)) if used else None


def delete_claims_beyond(context: ReconcileContext, wanted: int) -> None:
    """Delete the claims of pods that scaling has removed, if `storage.retention.whenScaled` says so.

    Args:
        context: What this pass works on.
        wanted: How many replicas there should be while the application runs; suspending it is not scaling.
    """
    current = context.view.replicas
    if context.spec.storage.retention.when_scaled != "Delete" or current is None or current > wanted:
        return
    for index, claim in sorted(context.view.claims.items()):
        if index >= wanted and index not in context.view.pods and not claim.terminating:
            context.actions.append(Delete(Key("PersistentVolumeClaim", claim.name), claim.uid))


def _claim_template(context: ReconcileContext) -> tuple[str, str | None] | None:
    """Return the size and the storage class of the StatefulSet's claims; None if there is no StatefulSet."""
    seen = context.view.stateful_set
    for template in [] if seen is None else seen["spec"].get("volumeClaimTemplates", []):
        if template["metadata"]["name"] == naming.STATE_VOLUME:
            return str(template["spec"]["resources"]["requests"]["storage"]), template["spec"].get("storageClassName")
    return None
