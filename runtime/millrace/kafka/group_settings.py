"""A group's settings in the brokers, which override its members' settings if brokers assign the tasks (KIP-1071).

They outlive the group's members, and may be set before it has any. A setting that is not set for the group has the brokers'
default.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Final, NamedTuple

from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from millrace.deadline import Deadline
from millrace.errors import AuthorizationError
from millrace.kafka.admin_requests import ask, request_timeout

__all__ = ["GroupSetting", "correct_group_settings", "group_settings", "set_group_settings", "wrong_group_settings"]

_SET_FOR_THE_GROUP: Final = 8
"""Kafka's code for the source of a value that was set for one group."""


class GroupSetting(NamedTuple):
    """The value of a setting, and where it comes from."""

    value: str
    is_own: bool
    """Whether it was set for this group, and is not the brokers' default."""


def group_settings(admin: AdminClient, group_id: str, timeout_s: float = 30.0) -> dict[str, GroupSetting]:
    """Return a group's settings, whether or not it exists; empty if the brokers are too old to have any.

    Raises:
        AuthorizationError: They may not be described.
        StreamsTimeoutError: The brokers did not answer in time.
    """
    deadline = Deadline(timeout_s)

    def request(_: Collection[str]) -> Mapping[str, Future[dict[str, ConfigEntry] | None]]:
        resource = ConfigResource(ConfigResource.Type.GROUP, group_id)
        (future,) = admin.describe_configs([resource], request_timeout=request_timeout(deadline)).values()
        return {group_id: future}

    try:
        found = ask(
            "describe the settings of group", request, [group_id], timeout_s, final={KafkaError.INVALID_REQUEST: None}
        )
    except AuthorizationError as error:
        raise AuthorizationError(
            f"The principal may not describe the settings of group {group_id}; allow DESCRIBE_CONFIGS on it"
        ) from error
    return {
        entry.name: GroupSetting(entry.value, entry.source == _SET_FOR_THE_GROUP)  # type: ignore[comparison-overlap]
        for entry in (found[group_id] or {}).values()
        if entry.value is not None
    }


def wrong_group_settings(wanted: Mapping[str, str | None], found: Mapping[str, GroupSetting]) -> dict[str, str | None]:
    """Return the wanted settings that differ from the group's.

    Args:
        wanted: The values; None for the brokers' default.
        found: The group's settings.
    """
    return {
        name: value
        for name, value in wanted.items()
        if (name not in found and value is not None)
        or (name in found and (found[name].is_own if value is None else found[name].value != value))
    }


def set_group_settings(
    admin: AdminClient, group_id: str, settings: Mapping[str, str | None], timeout_s: float = 30.0
) -> None:
    """Change settings of a group; None removes one, so that the brokers' default applies.

    Raises:
        AuthorizationError: They may not be changed.
        StreamsError: The brokers do not know a setting, or do not accept a value.
        StreamsTimeoutError: They did not answer in time.
    """
    deadline = Deadline(timeout_s)
    entries = [
        ConfigEntry(name, "", incremental_operation=AlterConfigOpType.DELETE)
        if value is None
        else ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]

    def request(_: Collection[str]) -> Mapping[str, Future[object]]:
        resource = ConfigResource(ConfigResource.Type.GROUP, group_id, incremental_configs=entries)
        (future,) = admin.incremental_alter_configs([resource], request_timeout=request_timeout(deadline)).values()
        return {group_id: future}

    given = ", ".join(f"{name}={'(default)' if value is None else value}" for name, value in settings.items())
    try:
        ask(f"set {given} for group", request, [group_id], timeout_s)
    except AuthorizationError as error:
        raise AuthorizationError(
            f"The principal may not set {given} for group {group_id}; allow ALTER_CONFIGS on it"
        ) from error


def correct_group_settings(
    admin: AdminClient, group_id: str, wanted: Mapping[str, str | None], timeout_s: float = 30.0
) -> dict[str, str | None]:
    """Give a group the wanted settings, and return those that had to be changed.

    Raises:
        StreamsError: As `group_settings` and `set_group_settings`.
    """
    if not wanted:
        return {}
    wrong = wrong_group_settings(wanted, group_settings(admin, group_id, timeout_s))
    if wrong:
        set_group_settings(admin, group_id, wrong, timeout_s)
    return wrong
