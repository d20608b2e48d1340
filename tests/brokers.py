"""The brokers that tests share: the session's, which nobody disturbs, and one for each process, which tests may break.

Starting a broker costs more than most tests. So these have what tests ask for beside an open listener: another one where clients
log in, and rules about who may do what. Who does not log in may do everything, and so may users of resources without a rule.
"""

from __future__ import annotations

import secrets
from typing import Any

from millrace.dev.kafka import EmbeddedKafka, SaslPlain

PASSWORDS = {
    "alice": "canary-8d1f",
    "quoted": 'se"cr\\et',
    "reference": "${directory:/proc/self:comm}",  # of a file that every process has
}
"""The users who log in with the mechanism PLAIN."""

STREAMS_GROUPS = {
    "group.streams.min.heartbeat.interval.ms": "200",
    "group.streams.heartbeat.interval.ms": "200",
    "group.streams.min.session.timeout.ms": "2000",
    "group.streams.min.assignment.interval.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
}
"""Settings with which streams groups rebalance as quickly as classic ones."""

_MODULE = "org.apache.kafka.common.security"
_DAY_MS = str(24 * 3_600_000)

OPTIONS = {
    "security": SaslPlain(PASSWORDS),
    "config": {
        # A broker may pause for long without being considered dead: that would cost markers.
        "broker.session.timeout.ms": "60000",
        # A transaction that takes too long is ended when its time is over, not up to ten seconds later.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        # For rack-aware assignment.
        "broker.rack": "rack-1",
        **STREAMS_GROUPS,
        # Records with timestamps of long ago stay.
        "log.retention.ms": "-1",
        "log.initial.task.delay.ms": _DAY_MS,
        "log.retention.check.interval.ms": _DAY_MS,
        # SCRAM users can be changed while the broker runs, and tokens are not signed. Both have to be shown again every second.
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{_MODULE}.scram.ScramLoginModule required;",
        "listener.name.sasl.scram-sha-512.connections.max.reauth.ms": "1000",
        "listener.name.sasl.oauthbearer.sasl.jaas.config": (
            f'{_MODULE}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="x";'
        ),
        "listener.name.sasl.oauthbearer.connections.max.reauth.ms": "1000",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    },
}
"""Options of `EmbeddedKafka`."""


def login(user: str = "alice", password: str | None = None) -> dict[str, str]:
    """Return the settings of a client that logs in, with the user's own password or another one."""
    password = password or PASSWORDS[user]
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{_MODULE}.plain.PlainLoginModule required username="{user}" password="{password}";',
    }


def new_topic(kafka: EmbeddedKafka, name: str = "in", **options: Any) -> str:
    """Create a topic and return its name, which nobody else has; the options are those of `create_topics`."""
    unique = f"{name}-{secrets.token_hex(4)}"
    kafka.create_topics(unique, **options)
    return unique


def heal(kafka: EmbeddedKafka) -> None:
    """Let paused brokers run, and start those that have ended.

    If none is left they begin again, on the same ports and without data: those that were killed could register only when their
    old sessions have timed out.
    """
    for broker in kafka.broker_ids:
        kafka.resume(broker)
    ended = [broker for broker in kafka.broker_ids if not kafka._processes[broker].alive]
    if len(ended) == len(kafka.broker_ids):
        kafka.stop()
        kafka.start()
        return
    for broker in ended:
        kafka.restart_broker(broker)
