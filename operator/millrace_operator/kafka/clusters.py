"""Everything that the operator does with Kafka, for any application, from any worker thread.

Errors of an observation are part of its result: an application whose brokers do not answer must still be reported on, scaled
and deleted. Errors of an action are raised. Neither shows a secret. Actions are idempotent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from millrace.config import StreamsConfig
from millrace.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigError,
    StreamsError,
    StreamsTimeoutError,
    UnsupportedFeatureError,
)
from millrace.kafka import resetter
from millrace.kafka.admin import delete_topics
from millrace.kafka.admin_requests import given_up
from millrace.kafka.group_settings import set_group_settings
from millrace.kafka.internal_topics import committed_partitions, provision
from millrace.kafka.resetter import set_offsets
from millrace.manifest import StreamsApp, to_group_settings
from millrace.plan import reset
from millrace.plan.backfill_marks import attempts_group, is_marked, mark_of, outputs_group
from millrace.plan.reset import OffsetTarget
from millrace.plan.topology_plan import TopologyPlan
from millrace_operator.backfills.observed_backfill import Published
from millrace_operator.kafka.client_config import (
    AllowedAccess,
    Credentials,
    TokenEndpointNotAllowedError,
    client_config,
    needed_secrets,
)
from millrace_operator.kafka.cluster_observation import observe_cluster
from millrace_operator.kafka.connections import AdminConnection, Connections
from millrace_operator.model import (
    ConfigureGroup,
    DeleteGroup,
    DeleteTopics,
    KafkaAction,
    KafkaState,
    ProvisionTopics,
    RemoveMembers,
    SetOffsets,
)

log = logging.getLogger("millrace_operator.kafka")

LOOK_TIMEOUT_S: Final = 3.5
"""How long the brokers are asked; including opening a connection, it takes less than ten seconds."""
_ALL_LOOKS_S: Final = 6.0
ACTION_TIMEOUT_S: Final = 30.0

_REASONS: Final[tuple[tuple[type[StreamsError], str], ...]] = (
    (AuthenticationError, "AuthenticationFailed"),
    (AuthorizationError, "NotAuthorized"),
    (TokenEndpointNotAllowedError, "TokenEndpointNotAllowed"),
    (ConfigError, "BadConfiguration"),
    (UnsupportedFeatureError, "BadConfiguration"),
    (StreamsError, "Unreachable"),
)


class KafkaClusters:
    """The brokers of all applications.

    Args:
        allowed: What the platform team lets the operator do; nothing if not given.
        connections: Those to the clusters; its own ones if not given.

    Example: `clusters.observe(app, Credentials.of(app.spec, secrets), plan, stable_plan)`
    """

    def __init__(self, allowed: AllowedAccess | None = None, connections: Connections | None = None) -> None:
        self._allowed = allowed or AllowedAccess()
        self._connections = Connections() if connections is None else connections

    def observe(
        self,
        app: StreamsApp,
        credentials: Credentials,
        *plans: TopologyPlan | None,
        internal_topics: Collection[str] = (),
    ) -> KafkaState:
        """Return what an application's brokers report about it, within ten seconds; never raises.

        Args:
            app: The application; its `metadata.uid` identifies its connection.
            credentials: To be used for it.
            plans: What its revisions need, None if not known; the plan that lag is counted for comes first.
            internal_topics: Internal topics in addition to the plans'.
        """
        if credentials.problem is not None:
            return KafkaState(error=credentials.problem, reason="SecretMissing")
        try:
            known = [plan for plan in plans if plan is not None]
            return self._look(app, client_config(app, credentials, self._allowed), known, internal_topics)
        except StreamsError as error:
            reason, message = next(reason for kind, reason in _REASONS if isinstance(error, kind)), str(error)
            if reason == "AuthenticationFailed" and (names := needed_secrets(app.spec)):
                message += f". The credentials are those of Secret {', '.join(names)}"
            return KafkaState(error=message, reason=reason)
        except Exception as error:
            log.exception("Asking the brokers of %s failed unexpectedly", app.metadata.name)
            return KafkaState(error=f"Asking the brokers failed: {type(error).__name__}", reason="Unreachable")

    def observe_for_reset(
        self,
        app: StreamsApp,
        credentials: Credentials,
        plan: TopologyPlan,
        target: OffsetTarget,
        inputs: Collection[str] = (),
    ) -> reset.ObservedApplication:
        """Return what `millrace.plan.reset` must know to work out a reset.

        Args:
            app: The application.
            credentials: To be used for it.
            plan: What its topologies need or needed.
            target: Where the application should start reading.
            inputs: Input topics in addition to the plan's.

        Raises:
            StreamsError: The brokers do not answer; says why and what to do.
        """
        with self._connected(app, credentials) as (connection, config):
            group = connection.groups.of_group(config.application_id, LOOK_TIMEOUT_S)
            return resetter.observe(connection.admin, group, plan, target, inputs, LOOK_TIMEOUT_S)

    def published(
        self, app: StreamsApp, credentials: Credentials, backfill: str, plans: Sequence[TopologyPlan]
    ) -> Published:
        """Return what the attempts of a backfill have published. None of them may write any more.

        Args:
            app: The application.
            credentials: To be used for it.
            backfill: The uid of the backfill.
            plans: What the application's revisions need, as far as known.

        Raises:
            StreamsError: The brokers do not answer; says why and what to do.
        """
        with self._connected(app, credentials, patient=True) as (connection, config):
            of = config.application_id
            group = connection.groups.of_group(of, LOOK_TIMEOUT_S)
            attempts = connection.groups.of_group(attempts_group(of, backfill), LOOK_TIMEOUT_S)
            # These wait for transactions that were committed, but whose offsets the groups do not have yet: the first ones, too.
            known = group.stable_offsets()
            asked = committed_partitions(plans, connection.admin, LOOK_TIMEOUT_S) | known.keys()
            group.stable_offsets(asked)
            if attempts.stable_offsets(asked or None):
                return "Everything"
            return "Parts" if is_marked(group.positions(), mark_of(backfill)) else "Nothing"

    def act(self, app: StreamsApp, credentials: Credentials, action: KafkaAction) -> None:
        """Change an application's topics or group. Idempotent.

        Raises:
            StreamsError: It could not be done; says why and what to do.
        """
        with self._connected(app, credentials, patient=True) as (connection, config):
            perform(connection, config, action)

    def forget(self, uid: str) -> None:
        """Close the connections that only this application used, which is gone."""
        self._connections.forget(uid)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    @contextmanager
    def _connected(
        self, app: StreamsApp, credentials: Credentials, *, patient: bool = False
    ) -> Iterator[tuple[AdminConnection, StreamsConfig]]:
        """Give an application's connection, which is dropped if it times out, and settings; raises what `lease` raises."""
        if credentials.problem is not None:
            raise ConfigError(credentials.problem)
        config = client_config(app, credentials, self._allowed)
        with self._connections.lease(_uid(app), config, patient=patient) as connection:
            try:
                yield connection, config
            except StreamsTimeoutError:
                self._connections.drop(connection)
                raise

    def _look(
        self, app: StreamsApp, config: StreamsConfig, plans: Sequence[TopologyPlan], internal_topics: Collection[str]
    ) -> KafkaState:
        """Observe. If a cached connection fails, a new one is tried, and opening it reveals what is wrong."""
        began = time.monotonic()
        while True:
            with self._connections.lease(_uid(app), config) as connection:
                left = max(0.5, began + _ALL_LOOKS_S - time.monotonic())
                try:
                    timeout_s = min(LOOK_TIMEOUT_S, left)
                    wanted_group = to_group_settings(app.spec)
                    return observe_cluster(
                        connection, config.application_id, plans, timeout_s, internal_topics, wanted_group
                    )
                except AuthorizationError:
                    raise
                except Exception as error:
                    self._connections.drop(connection)
                    if connection.opened_at >= began:
                        raise
                    log.info("Reconnecting to the brokers of %s: %s", app.metadata.name, error)


def _uid(app: StreamsApp) -> str:
    return app.metadata.uid or f"{app.metadata.namespace}/{app.metadata.name}"


def perform(connection: AdminConnection, config: StreamsConfig, action: KafkaAction) -> None:
    """Carry out one action.

    Raises:
        StreamsError: It could not be done; says why and what to do.
    """
    _check_may_go_on(config)
    match action:
        case ProvisionTopics(plan, names, replication_factor):
            wanted = config.model_copy(update={"replication_factor": replication_factor})
            report = provision(
                TopologyPlan.from_json(plan), connection.admin, wanted, only=names, timeout_s=ACTION_TIMEOUT_S
            )
            log.info(
                "Created topics of %s: %s", config.application_id, ", ".join(report.created) or "none were missing"
            )
        case DeleteTopics(names):
            delete_topics(connection.admin, names, ACTION_TIMEOUT_S)
            log.info("Deleted topics of %s: %s", config.application_id, ", ".join(names))
        case RemoveMembers(_, member_ids):
            group = connection.groups.of_group(config.application_id, ACTION_TIMEOUT_S)
            gone = [member for member in group.members() if member.member_id in member_ids]
            _check_may_go_on(config)
            if gone:
                group.remove(gone)
            log.info("Removed %d members of group %s", len(gone), config.application_id)
        case SetOffsets(leaving, offsets):
            set_offsets(connection.groups.of_group(config.application_id, ACTION_TIMEOUT_S), leaving, offsets)
            log.info("Set the offsets of group %s in %d partitions", config.application_id, len(offsets))
        case ConfigureGroup(settings):
            set_group_settings(connection.admin, config.application_id, settings, ACTION_TIMEOUT_S)
            log.info("Set %s for group %s", dict(settings), config.application_id)
        case DeleteGroup(backfill):
            of = config.application_id
            groups = [of] if backfill is None else [outputs_group(of, backfill), attempts_group(of, backfill)]
            for group_id in groups:
                _check_may_go_on(config)
                connection.groups.of_group(group_id, ACTION_TIMEOUT_S).delete()
                log.info("Deleted group %s", group_id)


def _check_may_go_on(config: StreamsConfig) -> None:
    """Check that this operator may still act: connecting and observing take time.

    Raises:
        StreamsTimeoutError: It may not.
    """
    if given_up():
        raise StreamsTimeoutError(
            f"The brokers of {config.application_id} were not changed: this operator may no longer change anything"
        )
