"""When the results of windowed aggregations are sent on (KIP-825)."""

from __future__ import annotations

from enum import Enum


class EmitStrategy(Enum):
    """With every update of a window, or once when it is final."""

    ON_WINDOW_UPDATE = "on-window-update"
    ON_WINDOW_CLOSE = "on-window-close"

    @classmethod
    def on_window_update(cls) -> EmitStrategy:
        """Send every update."""
        return cls.ON_WINDOW_UPDATE

    @classmethod
    def on_window_close(cls) -> EmitStrategy:
        """Send one final result, when window end + grace has passed."""
        return cls.ON_WINDOW_CLOSE
