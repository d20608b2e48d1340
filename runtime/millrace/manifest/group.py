"""The API group that all of Millrace's kinds are in."""

from __future__ import annotations

from typing import Literal

ApiVersion = Literal["streams.millrace.dev/v1alpha1"]
API_VERSION: ApiVersion = "streams.millrace.dev/v1alpha1"
GROUP, _, VERSION = API_VERSION.partition("/")
