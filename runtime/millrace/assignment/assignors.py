"""Which task assignor `task.assignor.class` selects."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.assignment.application_state import TaskAssignor
from millrace.assignment.high_availability import high_availability_assignor
from millrace.assignment.sticky import fallback_prior_assignor, sticky_assignor
from millrace.errors import ConfigError
from millrace.loading import load

_BUILT_IN: Mapping[str, TaskAssignor] = {
    "HighAvailabilityTaskAssignor": high_availability_assignor,
    "StickyTaskAssignor": sticky_assignor,
    "FallbackPriorTaskAssignor": fallback_prior_assignor,
}


def select_assignor(task_assignor_class: object) -> TaskAssignor:
    """Return the assignor that `task.assignor.class` names.

    Args:
        task_assignor_class: None for high availability, or what `millrace.loading` accepts: the name of a built-in one, a
            callable of the shape of `TaskAssignor`, or where to import it from.

    Raises:
        ConfigError: There is no such assignor.
    """
    if task_assignor_class is None:
        return high_availability_assignor
    assignor = load(task_assignor_class, "task.assignor.class", _BUILT_IN)
    if not callable(assignor):
        raise ConfigError(f"task.assignor.class: {task_assignor_class!r} is not a task assignor, which is a function")
    return assignor
