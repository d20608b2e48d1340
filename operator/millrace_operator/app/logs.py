"""How the operator logs: to standard error, as text or as one JSON object per line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from millrace_operator.app.settings import OperatorSettings


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure_logs(settings: OperatorSettings) -> None:
    """Log as the settings say; libraries only from warnings up."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _Json()
        if settings.log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    if settings.log_level != "DEBUG":
        for library in ("kopf", "kubernetes", "urllib3", "aiohttp", "asyncio", "kafka"):
            logging.getLogger(library).setLevel(logging.WARNING)
