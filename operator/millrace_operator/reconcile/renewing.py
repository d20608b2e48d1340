"""Renewing: replacing pods of the right revision, one at a time, that cannot use new credentials, or that an older template made.

Passwords are used anew by what runs. Certificates and keys are read once by the clients' libraries, and an instance that sees
other ones in its files says so. It is restarted behind the gate of a roll, which the first pod that does not come up with the new
ones stops: the others go on with the old ones for as long as brokers take them.

Another version of the operator may build the pods of a revision differently. So that its own upgrade does not restart the pods
of all applications together, this takes a turn, which the operator gives to few applications at a time. An application keeps its
turn until all its pods have run well by the new template for as long as the gate asks: a template that does not do stops there.
There is no way back from it by a rollback, as the revision is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace_operator.model import Instance, Renewal
from millrace_operator.reconcile import rolling
from millrace_operator.reconcile.reasons import Reason
from millrace_operator.reconcile.revisions import revision_of
from millrace_operator.reconcile.turn import Turn
from millrace_operator.reconcile.view import Pod


def renew_pods(turn: Turn, replicas: int, *, may_start: bool) -> bool:
    """Restart a pod with stale credentials if that may be done now, and return whether there is none.

    Args:
        turn: The turn; all pods are of the target revision.
        replicas: How many there are to be.
        may_start: Whether brokers and topics are such that a new pod could run.
    """
    there = [pod for index, pod in sorted(turn.view.pods.items()) if index < replicas]
    stale = [pod for pod in reversed(there) if _is_stale(turn.observed.instances.get(pod.name)) and not pod.terminating]
    if not stale:
        return True
    names = ", ".join(sorted(pod.name for pod in stale))
    turn.settle("True", Reason.RENEWING_CREDENTIALS, f"Pods that are to use new certificates or keys: {names}.")
    if may_start:
        _restart_one(turn, replicas, there, stale)
    else:
        turn.look_after(15)
    return False


def _is_stale(instance: Instance | None) -> bool:
    return instance is not None and instance.credentials_stale


def _restart_one(turn: Turn, replicas: int, there: Sequence[Pod], stale: Sequence[Pod]) -> None:
    absent = len(there) < replicas or any(pod.terminating for pod in there)
    coming = any(not pod.ready and pod not in stale for pod in there)
    if absent or coming:
        turn.look_after(10)
        return
    cut_off = [pod for pod in stale if not pod.ready and not turn.observed.instances[pod.name].restoring]
    closed = None if cut_off else rolling.gate(turn, there)
    if closed is None:
        rolling.delete_pods(turn, (cut_off or stale)[:1])
    else:
        turn.settle("True", Reason.WAITING_FOR_GATE, closed)


def renew_by_template(turn: Turn, revision: str, template: str, replicas: int, *, may_start: bool) -> None:
    """Replace a pod that another template has made if it is the application's turn and the gate is open; settle PodsCurrent.

    Args:
        turn: The turn; all pods are of the target revision, and the StatefulSet has its template.
        revision: The target revision.
        template: The template's hash.
        replicas: How many there are to be.
        may_start: Whether brokers and topics are such that a new pod could run.
    """
    there = [pod for index, pod in sorted(turn.view.pods.items()) if index < replicas]
    outdated = [pod for pod in reversed(there) if pod.template != template]
    coming = [pod for pod in there if pod not in outdated and not pod.ready]
    is_down = bool(coming) or len(there) < replicas or any(pod.terminating for pod in there)
    told = turn.condition("PodsCurrent")
    is_held = _held_back(turn, revision) is not None
    has_turn = turn.observed.renewal == "Now" and not is_held
    under_way = has_turn or (is_down and told is not None and told.reason == Reason.RENEWAL_UNDER_WAY)
    if not replicas or (not outdated and (not under_way or rolling.has_settled(turn, revision, replicas))):
        turn.settle("True", Reason.TEMPLATE_IN_USE)
        return
    if has_turn or (outdated and may_start and not is_held):
        turn.renewal = Renewal(left=len(outdated), coming=is_down)
    if not under_way:
        turn.settle("False", Reason.TEMPLATE_OUTDATED, _outdated_message(turn, revision, outdated, replicas))
        return
    names = ", ".join(sorted(pod.name for pod in outdated))
    left = f"Pods that are left as they are: {names}." if outdated else "No pod is left as it was."
    turn.settle("False", Reason.RENEWAL_UNDER_WAY, f"Pods that are to be replaced yet: {names or 'none'}.")
    failure = rolling.failure_among(turn, coming) if turn.stable == revision else None
    if failure is not None:
        turn.settle(
            "True",
            Reason.RENEWAL_FAILED,
            f"{failure.message} It is as this version of the operator builds pods. {left}",
        )
        return
    turn.settle(
        "True", Reason.RENEWING_PODS, f"Pods are replaced one after another; to be replaced yet: {names or 'none'}."
    )
    if not turn.view.pods_follow:
        turn.look_after(1)
    elif has_turn and may_start and outdated:
        rolling.replace_one(turn, replicas, there, outdated)


def _held_back(turn: Turn, revision: str) -> str | None:
    """Return why pods are not replaced for the template's sake whose turn ever it is; None if nothing speaks against it."""
    if turn.is_true("Stalled"):
        return "They are not replaced while the application is stalled."
    if revision_of(turn.spec) != revision:
        return "They are replaced with the next revision, which is being prepared."
    return None


def _outdated_message(turn: Turn, revision: str, outdated: Sequence[Pod], replicas: int) -> str:
    names = ", ".join(sorted(pod.name for pod in outdated))
    what = f"{len(outdated)} of {replicas} pods are not as this version of the operator builds them: {names}."
    held_back = _held_back(turn, revision)
    if held_back is not None:
        return f"{what} {held_back}"
    if turn.observed.renewal == "Never":
        return (
            f"{what} The operator is not to replace them for that (MILLRACE_OPERATOR_TEMPLATE_ROLLS is 0). "
            "Another restartNonce has them replaced."
        )
    return f"{what} They run on, and wait for the application's turn to have them replaced."
