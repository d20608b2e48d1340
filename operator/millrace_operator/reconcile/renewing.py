"""Renewing: restarting pods, one at a time, that cannot use credentials which have changed.

Passwords are used anew by what runs. Certificates and keys are read once by the clients' libraries, and an instance that sees
other ones in its files says so. It is restarted behind the gate of a roll, which the first pod that does not come up with the new
ones stops: the others go on with the old ones for as long as brokers take them.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace_operator.model import Instance
from millrace_operator.reconcile import rolling
from millrace_operator.reconcile.reasons import Reason
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
