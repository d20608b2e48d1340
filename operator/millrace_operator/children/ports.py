"""Where a pod serves its health, status and metrics."""

from typing import Final

HTTP_PORT: Final = 8080
HTTP_PORT_NAME: Final = "http"
