"""Where a source starts reading when its group has no committed offset (KIP-1106)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millrace.checks import Suggesting, mistake, wrong
from millrace.durations import Duration, to_millis


@dataclass(frozen=True, slots=True)
class AutoOffsetReset(Suggesting):
    """A reset policy: `EARLIEST`, `LATEST`, `NONE`, or `by_duration`.

    >>> AutoOffsetReset.by_duration(60_000)
    AutoOffsetReset(policy='by_duration:60000')
    """

    policy: str
    EARLIEST: ClassVar[AutoOffsetReset]
    LATEST: ClassVar[AutoOffsetReset]
    NONE: ClassVar[AutoOffsetReset]

    @classmethod
    def by_duration(cls, duration: Duration) -> AutoOffsetReset:
        """Start with records that are at most this old.

        Raises:
            TopologyError: the duration is negative.
        """
        return cls(f"by_duration:{to_millis(duration, 'The duration of an offset reset')}")

    @classmethod
    def policy_of(cls, reset: AutoOffsetReset | str | None) -> str | None:
        """Return a policy in the form that source nodes use.

        Raises:
            TopologyError: the text is not a policy.
        """
        if reset is None or isinstance(reset, AutoOffsetReset):
            return None if reset is None else reset.policy
        if not isinstance(reset, str):
            raise wrong("offset_reset", "an AutoOffsetReset or its name", reset)
        if reset in ("earliest", "latest", "none") or reset.startswith("by_duration:"):
            return reset
        raise mistake(f"Unknown offset reset policy {reset!r}; it is earliest, latest, none or by_duration:<ms>")


AutoOffsetReset.EARLIEST = AutoOffsetReset("earliest")
AutoOffsetReset.LATEST = AutoOffsetReset("latest")
AutoOffsetReset.NONE = AutoOffsetReset("none")
