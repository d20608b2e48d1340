"""`python -m millrace_operator`: runs the operator; docs/operator.md describes its settings."""

from __future__ import annotations

import logging
import os
import sys

from kubernetes.config import ConfigException

from millrace_operator.app.operator import Operator, api_client
from millrace_operator.app.settings import SettingsError, configure_logs, settings_from
from millrace_operator.cluster.requests import ApiError

log = logging.getLogger("millrace_operator")


def main() -> int:
    """Run the operator and return its exit status."""
    try:
        settings = settings_from(os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 - logging is not set up without settings
        return 2
    configure_logs(settings)
    try:
        return Operator(settings, api_client(settings.workers)).run()
    except (ApiError, ConfigException) as error:
        log.error("%s", error)  # noqa: TRY400 - the message says it all
        return 1


if __name__ == "__main__":
    sys.exit(main())
