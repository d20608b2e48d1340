"""`python -m e2e.crashing_operator` runs the operator, which kills itself right after its first action.

Actions on Kubernetes or Kafka count, and so does writing a status that differs from the existing one.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from millrace_operator.__main__ import main
from millrace_operator.app import app_controller, reset_controller
from millrace_operator.app.kafka_service import KafkaService
from millrace_operator.cluster.executor import Executor


def _fatal(act: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(act)
    def act_and_die(*args: Any, **kwargs: Any) -> None:
        if act(*args, **kwargs) is not False:
            os._exit(137)

    return act_and_die


if __name__ == "__main__":
    for owner, name in (
        (Executor, "do"),
        (Executor, "patch_app"),
        (KafkaService, "act"),
        (app_controller, "write_status"),
        (reset_controller, "write_status"),
    ):
        setattr(owner, name, _fatal(getattr(owner, name)))
    sys.exit(main())
