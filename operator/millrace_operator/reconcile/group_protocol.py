"""The group protocol: settings that the group has in the brokers, and applications that change from one protocol to the other.

With `spec.kafka.groupProtocol: streams` the brokers assign the tasks. The number of standbys and the time after which a member
counts as dead are settings of the group then, which every pass compares with the manifest.

A group with members of one protocol accepts none of the other. So a change of the protocol stops all pods, waits until the group
is empty, and starts them again; the group keeps its offsets, and the pods their volumes. Nothing is stopped before the brokers
have said that they serve the protocol.
"""

from __future__ import annotations

from millrace.config import GroupProtocol
from millrace.manifest import to_group_settings
from millrace_operator.model import ConfigureGroup
from millrace_operator.reconcile import consumer_group
from millrace_operator.reconcile.children_view import Pod
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import ReconcileContext, Target
from millrace_operator.reconcile.revisions import spec_of


def configure_group(context: ReconcileContext) -> bool:
    """Correct the group's settings, and return whether the brokers serve its protocol, as far as known."""
    kafka = context.observed.kafka
    if not context.brokers_answer or context.spec.kafka.group_protocol is GroupProtocol.CLASSIC:
        return True
    if kafka.brokers_assign is False:
        context.set_condition("True", ConditionReason.GROUP_PROTOCOL_NOT_SERVED)
        context.recheck_after(15)
        return False
    if kafka.group_settings_error is not None:
        context.set_condition("True", ConditionReason.GROUP_SETTINGS_UNKNOWN, f"{kafka.group_settings_error}.")
    elif kafka.wrong_group_settings:
        context.actions.append(ConfigureGroup(kafka.wrong_group_settings))
    return True


def has_to_stop(context: ReconcileContext, target: Target) -> bool:
    """Return whether there must be no pods now, because the group is still one of the other protocol; say so in Reconciling.

    Args:
        context: What this pass works on.
        target: The revision that pods are moved to; as long as it may not start, nothing stops for it.
    """
    if not target.may_start:
        return False
    protocol, group = target.spec.kafka.group_protocol, context.observed.kafka.group
    others = [pod.name for pod in context.view.pods.values() if _protocol_of(context, pod) not in {None, protocol}]
    if others:
        waits = f"pods that have to end first: {consumer_group.listed(others)}"
    elif not context.view.pods and group is not None and group.members and group.protocol != protocol:
        waits = f"members that have to leave the group first: {consumer_group.listed(group.members)}"
    else:
        return False
    context.set_condition(
        "True", ConditionReason.SWITCHING_GROUP_PROTOCOL, f"The group protocol changes to {protocol.value}; {waits}."
    )
    context.recheck_after(2)
    return True


def settings_to_remove(context: ReconcileContext) -> list[ConfigureGroup]:
    """Return the action that removes what the manifest has set for the group; the brokers would keep it longer than the group."""
    wanted = {} if context.desired.spec is None else to_group_settings(context.desired.spec)
    given = {name: None for name, value in wanted.items() if value not in {None, "0"}}
    return [ConfigureGroup(given)] if given else []


def _protocol_of(context: ReconcileContext, pod: Pod) -> GroupProtocol | None:
    config_map = context.view.revision_config_map(pod.revision)
    spec = None if config_map is None else spec_of(config_map)
    return None if spec is None else spec.kafka.group_protocol
