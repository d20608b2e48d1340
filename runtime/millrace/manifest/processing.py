"""`spec.processing`, `spec.standby` and `spec.membership`: how records are processed and who processes them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from millrace.config import ProcessingGuarantee
from millrace.manifest.fields import ENTRYPOINT_PATTERN, Duration, Int32, Int64, TopicName, duration_ms, text
from millrace.manifest.model import ManifestModel, Rule

_HANDLER = ENTRYPOINT_PATTERN.removeprefix("^").removesuffix("$")
_OF_YOUR_OWN = "or a handler of your own as `package.module:name`"
Decision = Annotated[str, *text(f"^(Fail|Continue|{_HANDLER})$", f"must be Fail, Continue {_OF_YOUR_OWN}", most=253)]
"""What becomes of a record that failed."""
ProductionDecision = Annotated[str, *text(f"^(Fail|{_HANDLER})$", f"must be Fail {_OF_YOUR_OWN}", most=253)]


class ErrorPolicy(ManifestModel):
    """What becomes of records that fail: `Fail` stops the replica, `Continue` logs and skips the record. A handler of your own
    is named as `package.module:name`."""  # noqa: D205, D209 (the text is one in the CRD)

    deserialization: Decision = "Fail"
    """Records that cannot be read."""
    processing: Decision = "Fail"
    """Records on which a processor raised."""
    production: ProductionDecision = "Fail"
    """Records that cannot be written; Kafka Streams has no handler that skips them."""


class Processing(ManifestModel):
    """How records are processed."""

    guarantee: Annotated[ProcessingGuarantee, Field(strict=False)] = ProcessingGuarantee.AT_LEAST_ONCE
    """How often the effects of a record may show."""
    commit_interval: Duration | None = None
    """How often progress is committed; 30s by default, 100ms with `exactly_once_v2`."""
    dead_letter_topic: TopicName | None = None
    """The topic that gets the records that fail, with the reason in their headers; none if not given."""
    error_policy: ErrorPolicy = ErrorPolicy()
    """What becomes of records that fail."""


class Standby(ManifestModel):
    """Copies of the state on other replicas, which take over without restoring."""

    replicas: Annotated[Int32, Field(le=16)] = 0
    """How many copies each task's state has besides the one that is worked on."""
    max_warmups: Annotated[Int32, Field(ge=1, le=10_000)] = 2
    """How many tasks may be moved at a time by warming up their state on the new replica first."""
    acceptable_recovery_lag: Int64 = 10_000
    """How many records a copy may lack and still take over at once."""


SessionTimeout = Annotated[
    Duration,
    Rule(
        lambda value: 6_000 <= duration_ms(value) <= 1_800_000,
        "duration(self) >= duration('6s') && duration(self) <= duration('30m')",
        "must be between 6s and 30m, as brokers demand",
    ),
]


class Membership(ManifestModel):
    """How replicas belong to the consumer group."""

    static: bool = True
    """Whether a replica keeps its place in the group, and so its tasks, while its pod restarts."""
    session_timeout: SessionTimeout | None = None
    """How long a replica may be silent before its tasks go to others; 45s by default. With static membership this is also how
    long a pod may take to restart and keep them."""
