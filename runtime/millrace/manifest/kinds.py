"""The kinds of resources there are: where a new one (a StreamsBackfill, for example) is made known."""

from __future__ import annotations

from typing import Final

from millrace.manifest.streamsapp import StreamsApp
from millrace.manifest.streamsreset import StreamsReset

Resource = StreamsApp | StreamsReset
KINDS: Final[dict[str, type[Resource]]] = {"StreamsApp": StreamsApp, "StreamsReset": StreamsReset}
