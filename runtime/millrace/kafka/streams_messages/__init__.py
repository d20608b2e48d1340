"""The requests of the streams group protocol (KIP-1071) and their answers, which kafka-python lacks.

The JSON files beside this module list their fields, in the notation of Kafka's own protocol guide; kafka-python turns them into
classes that encode and decode.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage

__all__ = [
    "StreamsGroupDescribeRequest",
    "StreamsGroupDescribeResponse",
    "StreamsGroupHeartbeatRequest",
    "StreamsGroupHeartbeatResponse",
]


class StreamsGroupHeartbeatRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Joins or leaves a group (epoch 0 or -1), keeps a membership, and reports the tasks that a member owns."""


class StreamsGroupHeartbeatResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """The member's epoch, the group's problems and, if they have changed, the member's tasks and everybody's endpoints."""


class StreamsGroupDescribeRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Asks for the state of groups."""


class StreamsGroupDescribeResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """The state, topology and members of groups."""
