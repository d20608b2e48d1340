"""What an application is like now: conditions that follow from what was observed alone, whatever is done about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.manifest.status import ConditionType
from millrace_operator.reconcile.reasons import REASONS, Reason
from millrace_operator.reconcile.turn import NOT_ASKED, Turn
from millrace_operator.reconcile.view import Pod

_KAFKA_REASONS = {
    NOT_ASKED: Reason.BROKERS_NOT_ASKED,
    "Unreachable": Reason.UNREACHABLE,
    "AuthenticationFailed": Reason.AUTHENTICATION_FAILED,
    "NotAuthorized": Reason.NOT_AUTHORIZED,
    "BadConfiguration": Reason.BAD_CONFIGURATION,
    "SecretMissing": Reason.SECRET_MISSING,
    "TokenEndpointNotAllowed": Reason.TOKEN_ENDPOINT_NOT_ALLOWED,
}
_NAMES_SHOWN = 3
_IN_THE_WAY: Final[tuple[tuple[ConditionType, str], ...]] = (
    ("ReconciliationPaused", "True"),
    ("Stalled", "True"),
    ("BrokersReachable", "False"),
    ("Reconciling", "True"),
)
"""What may keep an application from having pods, and when it does; the first one is the reason."""


def settle_brokers(turn: Turn) -> None:
    """Settle BrokersReachable."""
    kafka = turn.observed.kafka
    if kafka.error is None:
        turn.settle("True", Reason.BROKERS_ANSWER)
        return
    reason = _KAFKA_REASONS.get(kafka.reason, Reason.UNREACHABLE)
    if reason is Reason.BROKERS_NOT_ASKED:
        turn.settle_unknown(reason, kafka.error)
        turn.look_after(15)  # the answer brings a turn by itself
    else:
        turn.settle("False", reason, f"{kafka.error.rstrip('.')}.")
        turn.look_after(15)


def settle_restoration(turn: Turn) -> None:
    """Settle StateRestored."""
    instances = turn.observed.instances
    restoring = sum(item.restoring for item in instances.values())
    before = turn.condition("StateRestored")
    if restoring:
        tasks = "One task restores" if restoring == 1 else f"{restoring} tasks restore"
        turn.settle("False", Reason.RESTORING, f"{tasks} state; the others run.")
        turn.look_after(15)
    elif before is not None and before.status != "Unknown" and not turn.all_tell:
        turn.settle(before.status, Reason(before.reason), before.message)
    elif instances or turn.view.replicas == 0:
        turn.settle("True", Reason.RESTORED)
    else:
        turn.settle("Unknown", Reason.RESTORATION_UNKNOWN)


def settle_ready(turn: Turn, wanted: int, *, suspended: bool) -> None:
    """Settle Ready.

    Args:
        turn: The turn.
        wanted: How many pods there are to be.
        suspended: Whether the application is suspended.
    """
    turn.wanted = wanted
    pods = turn.view.pods
    failing = [pod for _, pod in sorted(pods.items()) if _fails(turn, pod)]
    late = [pod.name for _, pod in sorted(pods.items()) if not pod.ready and pod not in failing]
    if suspended:
        # At rest it is as its spec says: tools that wait for a resource would wait for ever otherwise.
        done = not pods and turn.view.replicas in {None, 0}
        what = "no pods are left" if done else "its pods commit and end"
        turn.settle("True" if done else "False", Reason.SUSPENDED, f"The application is suspended; {what}.")
    elif failing:
        first = failing[0]
        assert first.trouble is not None
        others = f" ({len(failing)} pods fail.)" if len(failing) > 1 else ""
        turn.settle("False", Reason.PODS_FAILING, f"Pod {first.name}: {first.trouble.shown}{others}")
    elif not pods and _is_scaled_to_zero(turn):
        turn.settle("True", Reason.SCALED_TO_ZERO)
    elif not pods:
        turn.settle("False", Reason.NOTHING_RUNS)
    elif late or len(pods) < wanted:
        names = ", ".join(late[:_NAMES_SHOWN]) + (" …" if len(late) > _NAMES_SHOWN else "")
        missing = f"{wanted - len(pods)} not there yet" if len(pods) < wanted else ""
        turn.settle(
            "False",
            Reason.PODS_NOT_READY,
            "Pods that are not ready: " + ", ".join(filter(None, (names, missing))) + ".",
        )
        turn.look_after(15)
    else:
        turn.settle("True", Reason.ALL_TASKS_RUN)


def why_nothing_runs(verdicts: Mapping[str, tuple[str, str]]) -> str:
    """Return Ready's message where there are no pods: what is in the way, which is another condition's message.

    Args:
        verdicts: The status and the message of conditions.
    """
    for kind, status in _IN_THE_WAY:
        found, message = verdicts.get(kind, ("", ""))
        if found == status:
            return f"There are no pods yet: {message}"
    return REASONS[Reason.NOTHING_RUNS].meaning


def _fails(turn: Turn, pod: Pod) -> bool:
    """Return whether a pod does not come up by itself; a new one that has no node yet may only wait for its volume."""
    if pod.trouble is None or pod.ready:
        return False
    return pod.trouble.reason != "Unschedulable" or pod.is_old(turn.now)


def _is_scaled_to_zero(turn: Turn) -> bool:
    """Return whether no pods are wanted and that has been seen to: it is as its spec says then, as a Deployment of none is."""
    spec = turn.desired.spec
    return spec is not None and not spec.replicas and spec.autoscaling.mode != "Auto" and turn.view.replicas == 0


def settle_scaling(turn: Turn, *, busy: Reason | None) -> None:
    """Settle ScalingAllowed.

    Args:
        turn: The turn.
        busy: What else changes pods just now.
    """
    state = turn.observed.kafka.group.state if turn.observed.kafka.group is not None else ""
    if turn.observed.kafka.reason == NOT_ASKED and turn.condition("ScalingAllowed") is not None:
        return
    if not turn.brokers_answer:
        turn.settle("False", Reason.BROKERS_AWAY)
    elif not any(pod.ready for pod in turn.view.pods.values()):
        turn.settle("False", Reason.NOT_RUNNING)
    elif busy is not None:
        turn.settle("False", busy)
    elif turn.verdicts["StateRestored"].status == "False":
        turn.settle("False", Reason.STATE_IS_RESTORED)
    elif state != "Stable":
        turn.settle("False", Reason.TASKS_MOVE)
    else:
        turn.settle("True", Reason.SCALING_POSSIBLE)
