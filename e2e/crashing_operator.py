"""`python -m e2e.crashing_operator` runs the operator, which kills itself after some actions, as SIGKILL would.

`SIMULATED_CRASH_AFTER` is the number of actions. An action on Kubernetes or Kafka counts, and so does writing a status
that differs from the current one.
"""

import functools
import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

from millrace_operator.__main__ import main
from millrace_operator.app import app_controller, operation_controller
from millrace_operator.cluster.executor import Executor
from millrace_operator.kafka.clusters import KafkaClusters

_actions = itertools.count(1)


def _counted(act: Callable[..., Any], most: int) -> Callable[..., Any]:
    @functools.wraps(act)
    def act_and_count(*args: Any, **kwargs: Any) -> Any:
        result = act(*args, **kwargs)
        if result is not False and next(_actions) == most:
            os._exit(137)
        return result

    return act_and_count


if __name__ == "__main__":
    for owner, name in (
        (Executor, "do"),
        (Executor, "patch_app"),
        (KafkaClusters, "act"),
        (app_controller, "write_status"),
        (operation_controller, "write_status"),
    ):
        setattr(owner, name, _counted(getattr(owner, name), int(os.environ["SIMULATED_CRASH_AFTER"])))
    sys.exit(main())
