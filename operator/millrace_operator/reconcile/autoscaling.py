"""Autoscaling: how many replicas the load requires, and when the number is changed.

The capacity of a replica follows from how much all of them process and what fraction of their time that takes. There have to be
enough to keep up with the input and catch up with the lag within the target time, with some headroom. More
replicas than there are tasks for their threads would be idle, so that is a cap in addition to the user's own.

`spec.replicas` is never written, which would conflict with whoever keeps the manifest in a repository; with the mode Auto it is
only the starting point. The last decision is in `status.autoscaling.recommended`, and pods follow it. While something makes it
unwise to move tasks the number stays, and `blockedBy` says what that is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from millrace.durations import duration_ms
from millrace.instance_status import StreamsStatus
from millrace.manifest.streamsapp_status import AutoscalingStatus
from millrace.manifest.upgrade import Autoscaling
from millrace_operator.reconcile import copies
from millrace_operator.reconcile.app_status import two_digits
from millrace_operator.reconcile.context import ReconcileContext, Target
from millrace_operator.reconcile.timestamps import seconds, timestamp

_FULL: Final = 0.8
"""How busy replicas may be before there are more of them."""
_SPARE: Final = 0.6
"""How busy fewer replicas may be at most; less than `_FULL`, so that the number does not oscillate."""
_IDLE: Final = 0.01
"""How busy replicas must be for their capacity to be known."""
_SLOW: Final = 0.01
"""How many records per second must be processed for that."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much there is to do, and how busy that keeps the replicas."""

    lag: int
    records_per_second: float
    """Processed by all replicas."""
    busy: float
    """The sum over all replicas of the fraction of their time that this takes."""


def replicas(context: ReconcileContext) -> int:
    """Return how many replicas there should be while the application runs."""
    scaling = context.spec.autoscaling
    if scaling.mode != "Auto":
        return context.spec.replicas
    before = context.status.autoscaling
    decided = None if before is None else before.recommended
    start = decided or context.view.replicas or context.spec.replicas
    return _within(start, scaling, None)


def recommend(context: ReconcileContext, current: int, target: Target | None) -> AutoscalingStatus | None:
    """Return the number of replicas that the load requires, as the status has it; None if nobody wants to know.

    Args:
        context: What this pass works on, with ScalingAllowed set.
        current: How many there should be now.
        target: The revision that pods are moved to.
    """
    scaling = context.spec.autoscaling
    if scaling.mode == "Off":
        return None
    load = load_of(context.observed.instances.values(), context.observed.kafka.lag)
    tasks = None if target is None or target.topics is None else target.topics.tasks
    if tasks is None and context.status.topology is not None:
        tasks = context.status.topology.tasks
    limit = math.ceil(tasks / context.spec.threads) if tasks else None
    if load is None or context.spec.state == "suspended" or context.observed.backfill is not None:
        kept = context.status.autoscaling.recommended if context.status.autoscaling is not None else None
        return AutoscalingStatus(recommended=kept or current, reason="The load is not known.")
    advised, reason = advise(load, current, scaling, limit)
    fewer_since, fewer = None, None
    if advised < current:
        before = context.status.autoscaling or AutoscalingStatus()
        fewer_since = before.fewer_since or timestamp(context.now)
        # Not what the load needs at this very moment, or the number would follow every dip and come back.
        fewer = advised = min(max(advised, before.fewer or 0), current - 1) if before.fewer_since else advised
    blocked = None if advised == current else _blocked(context, fewer_since)
    acts = scaling.mode == "Recommend" or blocked is None
    if scaling.mode == "Auto" and acts:
        fewer_since, fewer = None, None  # what the remaining replicas need is observed afresh
    if scaling.mode == "Auto" and acts and advised != current:
        context.recheck_after(1)
    return AutoscalingStatus(
        recommended=advised if acts else current,
        reason=reason,
        blocked_by=blocked,
        fewer_since=fewer_since,
        fewer=fewer,
    )


def load_of(instances: Iterable[StreamsStatus], lag: int | None) -> Load | None:
    """Return the load; None if not all of it is known."""
    items = list(instances)
    if lag is None or not items:
        return None
    rates = [rate for item in items if (rate := item.processing.records_per_second) is not None]
    busy = [ratio for item in items if (ratio := item.processing.busy_ratio) is not None]
    if len(rates) < len(items) or len(busy) < len(items):
        return None
    return Load(lag, sum(rates), sum(busy))


def advise(load: Load, current: int, scaling: Autoscaling, limit: int | None) -> tuple[int, str]:
    """Return how many replicas a load requires, and the reason.

    Args:
        load: The load on the replicas there are.
        current: How many there should be now.
        scaling: The user's limits and target.
        limit: How many have tasks; None if not known.
    """
    catch_up_s = duration_ms(scaling.target_catch_up) / 1000
    needed = load.records_per_second + load.lag / catch_up_s
    if load.busy < _IDLE or load.records_per_second < _SLOW:
        if load.lag:
            reason = "Nothing is being processed, so the capacity of a replica is not known."
            return _within(current, scaling, limit), reason
        wanted = 1
    else:
        each = load.records_per_second / load.busy
        at_least, enough = math.ceil(needed / (each * _FULL)), math.ceil(needed / (each * _SPARE))
        wanted = at_least if at_least > current else min(enough, current)
    found = _within(wanted, scaling, limit)
    if found > current:
        lag = f"a lag of about {two_digits(load.lag)} records within {scaling.target_catch_up}"
        return found, f"{current} replicas do not keep up and catch up with {lag}."
    if found < current:
        return found, f"{found} replicas are enough for the load."
    idle = "; more would have no tasks" if limit is not None and found >= limit else ""
    return found, f"The load suits {found} replicas{idle}."


def _within(wanted: int, scaling: Autoscaling, limit: int | None) -> int:
    bounds = [bound for bound in (scaling.max, limit) if bound]
    return max(1, min([max(wanted, scaling.min), *bounds]))


def _blocked(context: ReconcileContext, fewer_since: str | None) -> str | None:
    """Return why the number of replicas may not change right now."""
    condition = context.conditions["ScalingAllowed"]
    if condition.status != "True":
        return condition.message
    cooldown = context.spec.autoscaling.cooldown
    before = context.condition("ScalingAllowed")
    allowed_since = context.now if before is None or before.status != "True" else seconds(before.last_transition_time)
    left = allowed_since + duration_ms(cooldown.rebalance) / 1000 - context.now
    if left > 0:
        context.recheck_after(left)
        return f"Tasks moved less than {cooldown.rebalance} ago."
    if fewer_since is None:
        return None
    if copies.is_awaited(context):
        return context.conditions["StateReplicated"].message
    left = seconds(fewer_since) + duration_ms(cooldown.scale_down) / 1000 - context.now
    if left <= 0:
        return None
    context.recheck_after(left)
    return f"Fewer replicas have to be enough for {cooldown.scale_down} first."
