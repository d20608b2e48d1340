"""Every reason that a condition of a StreamsApp may give: what it means, and what its reader can do.

The table is data so that docs/conditions.md can be generated from it. A reason belongs to one condition only, so the reason alone
says what is meant. The specifics of a case (names, numbers) are in the condition's message. `conditions` shows where reasons are
decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from millrace.manifest.status import ConditionType
from millrace_operator.reconcile.condition_reason import ConditionReason

__all__ = ["NO_ACTION", "REASONS", "ConditionReason", "ReasonMeaning"]


class ReasonMeaning(NamedTuple):
    """What a reason means."""

    condition: ConditionType
    meaning: str
    remedy: str
    """What to do; empty if no action is needed."""


NO_ACTION: Final = "No action needed."
"""The remedy where things take their normal course."""
_SEE_MESSAGE: Final = "Correct what the message names."

_TABLE: Final[Mapping[ConditionType, Mapping[ConditionReason, tuple[str, str]]]] = {
    "Ready": {
        ConditionReason.ALL_TASKS_RUN: ("All pods are running their tasks.", ""),
        ConditionReason.SCALED_TO_ZERO: (
            "The spec asks for no replicas, and no pods are left.",
            "To process records again, set `replicas` to 1 or more.",
        ),
        ConditionReason.NOTHING_RUNS: (
            "There are no pods yet; the message says why.",
            "Look at Stalled, BrokersReachable and Reconciling.",
        ),
        ConditionReason.PODS_NOT_READY: (
            "Some pods are starting, restoring state or waiting for the group.",
            "Wait, or check StateRestored and BrokersReachable.",
        ),
        ConditionReason.PODS_FAILING: (
            "Some pods crash or cannot start.",
            "Read the message and the pods' logs, then fix the spec or the program.",
        ),
        ConditionReason.SUSPENDED: (
            "The application is suspended, as the spec says: `True` once all pods have stopped.",
            "To resume, set `state: running`.",
        ),
        ConditionReason.BACKFILLING: (
            "The application is stopped while a StreamsBackfill computes its state, or because one has left half a state.",
            "Read the StreamsBackfill's message.",
        ),
        ConditionReason.DELETING: ("The application is being deleted.", NO_ACTION),
    },
    "Reconciling": {
        ConditionReason.UP_TO_DATE: ("The cluster matches the spec.", ""),
        ConditionReason.HELD_BACK: (
            "The operator is waiting for somebody to intervene.",
            "Look at Stalled and ReconciliationPaused.",
        ),
        ConditionReason.PLANNING: ("A Job is getting the topology plan from the image.", NO_ACTION),
        ConditionReason.PROVISIONING_TOPICS: ("Internal topics are being created.", NO_ACTION),
        ConditionReason.WAITING_FOR_BROKERS: (
            "Nothing is started until the brokers answer.",
            "Look at BrokersReachable.",
        ),
        ConditionReason.WAITING_FOR_TOPICS: (
            "Nothing is started until the topics exist with the right settings.",
            "Look at TopicsReady.",
        ),
        ConditionReason.STARTING_PODS: ("Pods are starting.", NO_ACTION),
        ConditionReason.REPLACING_PODS: ("Pods are being replaced with another revision.", NO_ACTION),
        ConditionReason.WAITING_FOR_GATE: (
            "The next pod is replaced when the group is stable, no task restores and the lag is within `upgrade.gate.maxLag`.",
            "Wait, or relax `upgrade.gate`.",
        ),
        ConditionReason.RENEWING_CREDENTIALS: (
            "Certificates or keys have changed, so pods are being restarted one at a time to use them.",
            "Wait. If a restarted pod does not become ready, the new certificates do not work: correct the Secret.",
        ),
        ConditionReason.RENEWING_PODS: (
            "Pods are being replaced one at a time, because this version of the operator builds them differently.",
            NO_ACTION,
        ),
        ConditionReason.ROLLING_BACK: ("Pods are being rolled back to the previous revision.", "Look at RolledBack."),
        ConditionReason.SCALING_OUT: ("Pods are being added.", NO_ACTION),
        ConditionReason.SWITCHING_GROUP_PROTOCOL: (
            "All pods are stopped and started again, because a group cannot have members with different group protocols.",
            "Wait. If others are in the group, stop them.",
        ),
        ConditionReason.DRAINING: ("A pod is handing over its tasks before it is removed.", NO_ACTION),
        ConditionReason.SUSPENDING: ("Pods are committing and stopping.", NO_ACTION),
        ConditionReason.RESIZING_VOLUMES: ("Volumes are being enlarged.", NO_ACTION),
        ConditionReason.RECREATING_STATEFUL_SET: (
            "The StatefulSet is replaced underneath its running pods, because it cannot be changed in place.",
            NO_ACTION,
        ),
        ConditionReason.WAITING_FOR_HANDOVER: (
            "The application starts when its consumer group has no other members.",
            "Look at ApplicationIdUnique.",
        ),
        ConditionReason.DELETING_CHILDREN: ("Everything that the deletion policy covers is being deleted.", NO_ACTION),
        ConditionReason.DELETING_FROM_KAFKA: (
            "Topics, offsets and members are being deleted from Kafka, as the deletion policy says.",
            NO_ACTION,
        ),
    },
    "Stalled": {
        ConditionReason.NOT_STALLED: ("Nothing is blocking the operator.", ""),
        ConditionReason.INVALID_SPEC: (
            "The spec is not valid. The running application is left unchanged.",
            _SEE_MESSAGE,
        ),
        ConditionReason.NAME_TAKEN: (
            (
                "An object that does not belong to this StreamsApp has a name that one of its children needs. It is left "
                "unchanged, and everything that does not need the name continues."
            ),
            "Delete or hand over the object as the message says, or give the StreamsApp another name.",
        ),
        ConditionReason.PLAN_FAILED: (
            "The plan Job failed; the message has the last lines of its output. The running application is left unchanged.",
            "Fix the program or the spec. To retry without a change, change `restartNonce`.",
        ),
        ConditionReason.PLAN_IMAGE_UNAVAILABLE: (
            "The image cannot be pulled, so its plan is not known. The running application is left unchanged.",
            "Correct `image` or `imagePullSecrets`; or make the image available and change `restartNonce`.",
        ),
        ConditionReason.TOPOLOGY_HELD_BACK: (
            "The new topology cannot continue from the existing state.",
            "Look at TopologyCompatible.",
        ),
        ConditionReason.TOPICS_UNFIT: (
            "Internal topics do not have the settings they need, and the operator must not change them.",
            "Look at TopicsReady.",
        ),
        ConditionReason.START_FAILED: (
            "Pods are failing, and there is no earlier revision to roll back to.",
            "Read the message and the pods' logs, then fix the spec or the program.",
        ),
        ConditionReason.UPGRADE_FAILED: (
            "New pods failed or were not ready in time, and rollback is disabled or already done.",
            "Fix the spec, or change `restartNonce` to retry the failed revision.",
        ),
        ConditionReason.RENEWAL_FAILED: (
            "A pod built by this version of the operator failed or was not ready in time. The other pods are left unchanged.",
            (
                "Read the message and the pod's logs. If the program is not at fault, reinstall the previous version of the "
                "operator."
            ),
        ),
        ConditionReason.GROUP_PROTOCOL_NOT_SERVED: (
            (
                "The brokers do not serve the streams group protocol (KIP-1071), which `kafka.groupProtocol` asks for. The "
                "running application is left unchanged."
            ),
            (
                "Use Apache Kafka 4.2 or newer with the feature `streams.version=1`, and `streams` in "
                "`group.coordinator.rebalance.protocols` if that is set; or set `kafka.groupProtocol: classic`."
            ),
        ),
        ConditionReason.GROUP_SETTINGS_UNKNOWN: (
            "The operator may not see the group's settings, so standbys and time-outs may differ from the manifest.",
            "Allow the application's user DESCRIBE_CONFIGS and ALTER_CONFIGS on its group.",
        ),
        ConditionReason.APPLICATION_ID_IN_USE: (
            "The application is not started, because its `applicationId` is already in use.",
            "Look at ApplicationIdUnique.",
        ),
        ConditionReason.REFUSED_BY_API_SERVER: (
            (
                "The API server refused what the message names, because of a quota, an admission policy or webhook, or the "
                "operator's role. Everything that does not depend on it continues."
            ),
            "Change what refuses it. The operator retries automatically, and immediately when the spec changes.",
        ),
        ConditionReason.REFUSED_BY_KAFKA: (
            "The brokers refused what the message names.",
            "Do what the message says, or grant the application's user the permissions it needs. The operator retries.",
        ),
        ConditionReason.ACTION_FAILED: (
            "An action has failed several times, for example because something did not answer.",
            "Check what the message names: the API server, a webhook, the brokers or a pod. The operator retries automatically.",
        ),
        ConditionReason.OPERATOR_ERROR: (
            "A bug in the operator made it fail on this resource. Other applications are not affected.",
            "Please report the bug, with the operator's log.",
        ),
    },
    "BrokersReachable": {
        ConditionReason.BROKERS_ANSWER: ("The brokers answer and accept the application's credentials.", ""),
        ConditionReason.BROKERS_NOT_ASKED: ("The operator has not asked the brokers yet.", NO_ACTION),
        ConditionReason.UNREACHABLE: (
            "No broker answers. Running pods are left unchanged, and nothing new is started.",
            "Check `kafka.bootstrapServers`, the brokers, and network policies.",
        ),
        ConditionReason.AUTHENTICATION_FAILED: (
            "The brokers refuse the credentials.",
            "Correct the Secret that `kafka.auth` refers to.",
        ),
        ConditionReason.NOT_AUTHORIZED: (
            "The application's user lacks permission to describe or create what it needs.",
            "Grant the permissions that the message names, or set `internalTopics.management: VerifyOnly`.",
        ),
        ConditionReason.BAD_CONFIGURATION: ("The settings of the Kafka clients are invalid.", _SEE_MESSAGE),
        ConditionReason.SECRET_MISSING: (
            "A Secret that `kafka` refers to, or one of its keys, is missing.",
            "Create the Secret or the key.",
        ),
        ConditionReason.TOKEN_ENDPOINT_NOT_ALLOWED: (
            "The operator is not allowed to fetch tokens from the endpoint in the Secret of `kafka.auth`.",
            "Ask the platform team to add it to `MILLRACE_OPERATOR_TOKEN_ENDPOINTS` (`operator.tokenEndpoints` in the chart).",
        ),
    },
    "TopicsReady": {
        ConditionReason.TOPICS_FIT: ("All topics exist with the settings that the topology needs.", ""),
        ConditionReason.TOPICS_UNKNOWN: (
            "The plan or the brokers' answer is not available yet.",
            "Look at BrokersReachable and Stalled.",
        ),
        ConditionReason.INPUT_TOPIC_MISSING: (
            "An input topic does not exist. The operator does not create input topics.",
            "Create it, or correct its name.",
        ),
        ConditionReason.PARTITIONS_DISAGREE: (
            "Topics that are joined or merged have different numbers of partitions.",
            "Create them with the same number, or repartition one in the topology.",
        ),
        ConditionReason.INTERNAL_TOPIC_MISSING: (
            "`internalTopics.management` is VerifyOnly and a topic does not exist.",
            "Create it as the message says (`millrace plan` lists all).",
        ),
        ConditionReason.TOPICS_BEING_CREATED: ("The operator is creating internal topics.", NO_ACTION),
        ConditionReason.TOO_FEW_BROKERS: (
            "There are fewer brokers than `internalTopics.replicationFactor`.",
            "Add brokers, or lower it.",
        ),
        ConditionReason.TOPIC_MISCONFIGURED: (
            (
                "An internal topic has a different number of partitions or cleanup policy than the state needs, or cannot be "
                "written to."
            ),
            "Follow the message; a StreamsReset recreates the topics.",
        ),
        ConditionReason.DEAD_LETTER_TOPIC_MISSING: (
            (
                "The topic of `processing.deadLetterTopic` does not exist. Nothing is blocked, because brokers may create it "
                "on demand; but pods do not start without it."
            ),
            "Create it, or correct its name.",
        ),
        ConditionReason.TOPIC_DIFFERS: (
            (
                "An internal topic works but differs from the spec in replication, min.insync.replicas or retention. "
                "Nothing is blocked."
            ),
            "Alter the topic as the message says.",
        ),
        ConditionReason.CHANGELOG_LOST: (
            (
                "A changelog topic that the operator knew is gone, or was recreated. The operator does not recreate it, because "
                "state would be lost silently."
            ),
            "Reset the application with a StreamsReset, or accept the loss with the annotation that the message shows.",
        ),
        ConditionReason.REPARTITION_TOPIC_LOST: (
            "A repartition topic that the operator knew is gone, or was recreated: records in transit were lost.",
            "Reset the application with a StreamsReset, or accept the loss with the annotation that the message shows.",
        ),
    },
    "TopologyCompatible": {
        ConditionReason.COMPATIBLE: ("The topology can continue from the existing state.", ""),
        ConditionReason.PLAN_PENDING: ("The plan of the new topology is not known yet.", "Wait, or look at Stalled."),
        ConditionReason.NEEDS_RESET: (
            "The new topology would leave state behind or misread it. The running application is left unchanged.",
            "Undo the change, reset the application with a StreamsReset, or set `upgrade.topologyPolicy: Warn`.",
        ),
        ConditionReason.NEEDS_RESET_IGNORED: (
            "The new topology leaves state behind or misreads it, but runs because `upgrade.topologyPolicy` is Warn.",
            "Check the results.",
        ),
    },
    "TopologyShared": {
        ConditionReason.TOPOLOGY_AGREES: ("Every pod takes the tasks that the group's leader assigns to it.", ""),
        ConditionReason.TOPOLOGIES_DIFFER: (
            (
                "The members of the group run different topologies: a pod was assigned tasks that its own topology does not "
                "have, and nobody processes their input. Until a roll to a new version has ended, this is normal."
            ),
            (
                "If this persists: make sure that no other program uses the application id, and that the topology does not "
                "depend on what differs between pods."
            ),
        ),
        ConditionReason.TOPOLOGY_UNKNOWN: ("No pod has reported its tasks.", "Look at Ready."),
    },
    "StateRestored": {
        ConditionReason.RESTORED: ("No task is restoring state.", ""),
        ConditionReason.RESTORING: ("Tasks are restoring their state from changelogs.", NO_ACTION),
        ConditionReason.RESTORATION_UNKNOWN: ("No pod has reported its tasks.", "Look at Ready."),
    },
    "StateReplicated": {
        ConditionReason.COPIES_CAUGHT_UP: ("Every task with state has a copy on another pod that could take over.", ""),
        ConditionReason.COPIES_BEHIND: (
            (
                "Tasks have no copy on another pod that could take over at once. Until they have one, pods are not removed, "
                "replaced or evicted, for at most `standby.catchUpTimeout`."
            ),
            NO_ACTION,
        ),
        ConditionReason.COPIES_UNKNOWN: ("No pod has reported its tasks.", "Look at Ready."),
        ConditionReason.NO_COPIES_WANTED: ("There are no standbys, or there is no second pod to keep them.", ""),
    },
    "ScalingAllowed": {
        ConditionReason.SCALING_POSSIBLE: ("The number of replicas can be changed.", ""),
        ConditionReason.NOT_RUNNING: ("The application is not running.", "Look at Ready."),
        ConditionReason.TASKS_MOVE: ("The group is rebalancing.", NO_ACTION),
        ConditionReason.STATE_IS_RESTORED: ("State is being restored.", NO_ACTION),
        ConditionReason.TASKS_WARM_UP: (
            "Tasks are about to move to pods that have no part in their load yet, as soon as their state has been copied there.",
            NO_ACTION,
        ),
        ConditionReason.UPGRADE_IN_PROGRESS: ("Pods are being replaced.", NO_ACTION),
        ConditionReason.SCALING_IN_PROGRESS: ("The number of replicas is already being changed.", NO_ACTION),
        ConditionReason.BROKERS_AWAY: ("The brokers do not answer.", "Look at BrokersReachable."),
    },
    "StorageHealthy": {
        ConditionReason.VOLUMES_FIT: ("Volumes have the requested size and enough free space.", ""),
        ConditionReason.VOLUME_NEARLY_FULL: (
            "A volume is more than 85 % full.",
            "Raise `storage.size`, or add replicas so that each holds fewer tasks.",
        ),
        ConditionReason.EXPANSION_UNSUPPORTED: (
            "`storage.size` has grown, but the storage class does not allow volumes to grow.",
            "Set `allowVolumeExpansion: true` on the class if its driver can, or set the size back.",
        ),
        ConditionReason.SHRINKING_REFUSED: (
            "`storage.size` is less than the volumes have, and volumes cannot shrink.",
            "Set the size back.",
        ),
        ConditionReason.VOLUME_PENDING: (
            "A volume has not been provided or enlarged yet.",
            "If this persists: check the storage class and the events of the claim.",
        ),
    },
    "RolledBack": {
        ConditionReason.NOT_ROLLED_BACK: ("The current revision has not been rolled back.", ""),
        ConditionReason.POD_CRASHED: (
            "A pod of the new revision crashed, so the previous revision was restored.",
            "Fix the program and change the spec; a new `restartNonce` is enough to retry.",
        ),
        ConditionReason.IMAGE_UNAVAILABLE: (
            "The new image could not be pulled, so the previous revision was restored.",
            "Correct the image, or make it available and change `restartNonce`.",
        ),
        ConditionReason.READY_TIMEOUT: (
            (
                "A pod of the new revision was not ready within `upgrade.gate.readyTimeout`, so the previous revision was "
                "restored."
            ),
            "Find out why, or allow more time and change `restartNonce` to retry.",
        ),
        ConditionReason.UPGRADE_NOT_BEGUN: (
            "The new revision failed before any pod was replaced. The previous one keeps running.",
            "Look at Stalled.",
        ),
    },
    "PodsCurrent": {
        ConditionReason.TEMPLATE_IN_USE: ("All pods match what this version of the operator builds.", ""),
        ConditionReason.TEMPLATE_OUTDATED: (
            (
                "Another version of the operator has created some pods, and this one builds them differently. They keep "
                "running until it is the application's turn: the operator replaces pods of a few applications at a time."
            ),
            "No action needed. To have them replaced now, change `restartNonce`.",
        ),
        ConditionReason.RENEWAL_UNDER_WAY: (
            "It is the application's turn: pods that another version of the operator has created are being replaced.",
            "Look at Reconciling and Stalled.",
        ),
    },
    "ReconciliationPaused": {
        ConditionReason.NOT_PAUSED: ("The operator is not paused.", ""),
        ConditionReason.PAUSED_BY_ANNOTATION: (
            "The annotation `streams.millrace.dev/pause` keeps the operator from changing anything but the status.",
            "Remove the annotation.",
        ),
    },
    "ApplicationIdUnique": {
        ConditionReason.UNIQUE: ("No other application has a prior claim to this application id.", ""),
        ConditionReason.MEMBERS_UNKNOWN: (
            "The members of the consumer group are not known, because the brokers do not answer.",
            "Look at BrokersReachable.",
        ),
        ConditionReason.DUPLICATE_APPLICATION_ID: (
            (
                "Another StreamsApp has the same `applicationId` on the same brokers, and is running or older. This one is "
                "not started; if it is already running, it keeps running."
            ),
            "Delete one of them, or let one take over with `handover`.",
        ),
        ConditionReason.HANDED_OVER: (
            "Another StreamsApp is taking over the application id: its `handover` names this one, which is not started again.",
            (
                "Delete it with the policy `Retain` or `Purge`; its topics and group then belong to the other one. Or remove "
                "that `handover`."
            ),
        ),
        ConditionReason.GROUP_IN_USE: (
            "The consumer group has members that are not pods of this StreamsApp, so it is not started.",
            "Set `handover` to take over from them, delete the StreamsApp if it uses their id by mistake, or stop them.",
        ),
        ConditionReason.MEMBERS_LEFT: (
            (
                "Members that are not pods of this StreamsApp have left the group. They may only be restarting, so it starts "
                "when none has been seen for five minutes."
            ),
            "Wait; or change `restartNonce` if they are gone for good.",
        ),
        ConditionReason.HANDOVER_PENDING: (
            "The application to take over from is still running, or its members are still in the group.",
            "Stop it as the message says.",
        ),
    },
}
"""By condition and reason: what it means, and what to do."""

REASONS: Final[Mapping[str, ReasonMeaning]] = {
    reason: ReasonMeaning(condition, meaning, remedy)
    for condition, reasons in _TABLE.items()
    for reason, (meaning, remedy) in reasons.items()
}
"""By reason: the condition it belongs to, what it means, and the remedy."""
