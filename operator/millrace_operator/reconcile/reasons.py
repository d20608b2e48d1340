"""Every reason that a condition of a StreamsApp may give: what it means, and what its reader can do.

The table is data so that the operations guide can be held to it. A reason belongs to one condition only, so that the reason alone
says what is meant. What applies to a case (names, numbers) is in the condition's message.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from millrace.manifest.status import ConditionType


class Reason(StrEnum):
    """Why a condition is as it is, in one word."""

    ALL_TASKS_RUN = "AllTasksRun"
    NOTHING_RUNS = "NothingRuns"
    PODS_NOT_READY = "PodsNotReady"
    PODS_FAILING = "PodsFailing"
    SUSPENDED = "Suspended"
    DELETING = "Deleting"

    UP_TO_DATE = "UpToDate"
    HELD_BACK = "HeldBack"
    PLANNING = "Planning"
    PROVISIONING_TOPICS = "ProvisioningTopics"
    WAITING_FOR_BROKERS = "WaitingForBrokers"
    WAITING_FOR_TOPICS = "WaitingForTopics"
    STARTING_PODS = "StartingPods"
    REPLACING_PODS = "ReplacingPods"
    WAITING_FOR_GATE = "WaitingForGate"
    RENEWING_CREDENTIALS = "RenewingCredentials"
    ROLLING_BACK = "RollingBack"
    SCALING_OUT = "ScalingOut"
    DRAINING = "Draining"
    SUSPENDING = "Suspending"
    RESIZING_VOLUMES = "ResizingVolumes"
    RECREATING_STATEFUL_SET = "RecreatingStatefulSet"
    DELETING_CHILDREN = "DeletingChildren"
    DELETING_FROM_KAFKA = "DeletingFromKafka"

    NOT_STALLED = "NotStalled"
    INVALID_SPEC = "InvalidSpec"
    PLAN_FAILED = "PlanFailed"
    PLAN_IMAGE_UNAVAILABLE = "PlanImageUnavailable"
    TOPOLOGY_HELD_BACK = "TopologyHeldBack"
    TOPICS_UNFIT = "TopicsUnfit"
    START_FAILED = "StartFailed"
    UPGRADE_FAILED = "UpgradeFailed"

    BROKERS_ANSWER = "BrokersAnswer"
    BROKERS_NOT_ASKED = "NotAsked"
    UNREACHABLE = "Unreachable"
    AUTHENTICATION_FAILED = "AuthenticationFailed"
    NOT_AUTHORIZED = "NotAuthorized"
    BAD_CONFIGURATION = "BadConfiguration"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 (the name of a reason)

    TOPICS_FIT = "TopicsFit"
    TOPICS_UNKNOWN = "TopicsUnknown"
    INPUT_TOPIC_MISSING = "InputTopicMissing"
    PARTITIONS_DISAGREE = "PartitionsDisagree"
    INTERNAL_TOPIC_MISSING = "InternalTopicMissing"
    TOPICS_BEING_CREATED = "TopicsBeingCreated"
    TOO_FEW_BROKERS = "TooFewBrokers"
    TOPIC_MISCONFIGURED = "TopicMisconfigured"
    DEAD_LETTER_TOPIC_MISSING = "DeadLetterTopicMissing"
    TOPIC_DIFFERS = "TopicDiffers"
    CHANGELOG_LOST = "ChangelogLost"
    REPARTITION_TOPIC_LOST = "RepartitionTopicLost"

    COMPATIBLE = "Compatible"
    PLAN_PENDING = "PlanPending"
    NEEDS_RESET = "NeedsReset"
    NEEDS_RESET_IGNORED = "NeedsResetIgnored"

    RESTORED = "Restored"
    RESTORING = "Restoring"
    RESTORATION_UNKNOWN = "RestorationUnknown"

    SCALING_POSSIBLE = "ScalingPossible"
    NOT_RUNNING = "NotRunning"
    TASKS_MOVE = "TasksMove"
    STATE_IS_RESTORED = "StateIsRestored"
    UPGRADE_IN_PROGRESS = "UpgradeInProgress"
    SCALING_IN_PROGRESS = "ScalingInProgress"
    BROKERS_AWAY = "BrokersAway"

    VOLUMES_FIT = "VolumesFit"
    VOLUME_NEARLY_FULL = "VolumeNearlyFull"
    EXPANSION_UNSUPPORTED = "ExpansionUnsupported"
    SHRINKING_REFUSED = "ShrinkingRefused"
    VOLUME_PENDING = "VolumePending"

    NOT_ROLLED_BACK = "NotRolledBack"
    POD_CRASHED = "PodCrashed"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    READY_TIMEOUT = "ReadyTimeout"
    UPGRADE_NOT_BEGUN = "UpgradeNotBegun"

    NOT_PAUSED = "NotPaused"
    PAUSED_BY_ANNOTATION = "PausedByAnnotation"


class Explanation(NamedTuple):
    """What a reason means."""

    condition: ConditionType
    meaning: str
    remedy: str
    """What to do; empty if nothing need be done."""


_WAIT: Final = "Nothing; it passes."
_SEE_MESSAGE: Final = "Correct what the message names."

REASONS: Final[Mapping[str, Explanation]] = {
    Reason.ALL_TASKS_RUN: Explanation("Ready", "All pods run all tasks that are assigned to them.", ""),
    Reason.NOTHING_RUNS: Explanation(
        "Ready", "There are no pods: none were started yet, or none are wanted.", "Look at Reconciling and Stalled."
    ),
    Reason.PODS_NOT_READY: Explanation(
        "Ready",
        "Some pods start, restore state or wait for the group.",
        "Wait; look at StateRestored and BrokersReachable.",
    ),
    Reason.PODS_FAILING: Explanation(
        "Ready",
        "Some pods crash or cannot start.",
        "Read the message and the pods' logs; change the spec or the program.",
    ),
    Reason.SUSPENDED: Explanation("Ready", "The application is suspended.", "Set `state: running`."),
    Reason.DELETING: Explanation("Ready", "The application is being deleted.", _WAIT),
    Reason.UP_TO_DATE: Explanation("Reconciling", "The cluster is as the spec wants it.", ""),
    Reason.HELD_BACK: Explanation(
        "Reconciling",
        "Nothing more is done until somebody does something.",
        "Look at Stalled and ReconciliationPaused.",
    ),
    Reason.PLANNING: Explanation("Reconciling", "The image is being asked for its topology plan.", _WAIT),
    Reason.PROVISIONING_TOPICS: Explanation("Reconciling", "Internal topics are being created.", _WAIT),
    Reason.WAITING_FOR_BROKERS: Explanation(
        "Reconciling", "The brokers have to answer before anything is started.", "Look at BrokersReachable."
    ),
    Reason.WAITING_FOR_TOPICS: Explanation(
        "Reconciling", "Topics have to exist and fit first.", "Look at TopicsReady."
    ),
    Reason.STARTING_PODS: Explanation("Reconciling", "Pods are starting.", _WAIT),
    Reason.REPLACING_PODS: Explanation("Reconciling", "Pods are being brought to another revision.", _WAIT),
    Reason.WAITING_FOR_GATE: Explanation(
        "Reconciling",
        "The next pod is replaced when the group is stable, nothing restores and the lag is within `upgrade.gate.maxLag`.",
        "Wait, or widen `upgrade.gate`.",
    ),
    Reason.RENEWING_CREDENTIALS: Explanation(
        "Reconciling",
        "Certificates or keys have changed, and pods are restarted one after another to use them.",
        "Wait. If a restarted pod does not become ready, the new certificates do not do: correct the Secret.",
    ),
    Reason.ROLLING_BACK: Explanation(
        "Reconciling", "Pods go back to the revision that ran before.", "Look at RolledBack."
    ),
    Reason.SCALING_OUT: Explanation("Reconciling", "Pods are being added.", _WAIT),
    Reason.DRAINING: Explanation("Reconciling", "A pod hands its tasks over before it is removed.", _WAIT),
    Reason.SUSPENDING: Explanation("Reconciling", "Pods commit and stop.", _WAIT),
    Reason.RESIZING_VOLUMES: Explanation("Reconciling", "Volumes are being made larger.", _WAIT),
    Reason.RECREATING_STATEFUL_SET: Explanation(
        "Reconciling", "The StatefulSet is replaced under its running pods, as it cannot be changed in place.", _WAIT
    ),
    Reason.DELETING_CHILDREN: Explanation("Reconciling", "What the deletion policy says is being deleted.", _WAIT),
    Reason.DELETING_FROM_KAFKA: Explanation(
        "Reconciling", "The brokers are told to delete what the deletion policy says, and to let members go.", _WAIT
    ),
    Reason.NOT_STALLED: Explanation("Stalled", "Nothing keeps the operator from going on.", ""),
    Reason.INVALID_SPEC: Explanation(
        "Stalled", "The spec breaks a rule; the running application is not touched.", _SEE_MESSAGE
    ),
    Reason.PLAN_FAILED: Explanation(
        "Stalled",
        "The image could not say what its topology needs; the message has its last lines. What runs is not touched.",
        "Correct the program or the spec. To try again unchanged, set another `restartNonce`.",
    ),
    Reason.PLAN_IMAGE_UNAVAILABLE: Explanation(
        "Stalled",
        "The image cannot be pulled, so its plan is not known. What runs is not touched.",
        "Correct `image` or `imagePullSecrets`; or make the image available and set another `restartNonce`.",
    ),
    Reason.TOPOLOGY_HELD_BACK: Explanation(
        "Stalled", "The new topology cannot go on from the state there is.", "Look at TopologyCompatible."
    ),
    Reason.TOPICS_UNFIT: Explanation(
        "Stalled", "Internal topics do not fit, and must not be changed.", "Look at TopicsReady."
    ),
    Reason.START_FAILED: Explanation(
        "Stalled",
        "The application has never run well, and its pods fail, so there is nothing to go back to.",
        "Read the message and the pods' logs; change the spec or the program.",
    ),
    Reason.UPGRADE_FAILED: Explanation(
        "Stalled",
        "New pods fail or are not ready in time, and rolling back is off or was done.",
        "Correct the spec; or set another `restartNonce` to try the failed revision again.",
    ),
    Reason.BROKERS_ANSWER: Explanation(
        "BrokersReachable", "The brokers answer, with the application's credentials.", ""
    ),
    Reason.BROKERS_NOT_ASKED: Explanation("BrokersReachable", "The brokers have not been asked yet.", _WAIT),
    Reason.UNREACHABLE: Explanation(
        "BrokersReachable",
        "No broker answers. Running pods are left alone; nothing new is started.",
        "Check `kafka.bootstrapServers`, the brokers, and network policies.",
    ),
    Reason.AUTHENTICATION_FAILED: Explanation(
        "BrokersReachable", "The brokers refuse the credentials.", "Correct the Secret that `kafka.auth` names."
    ),
    Reason.NOT_AUTHORIZED: Explanation(
        "BrokersReachable",
        "The application's user may not describe or create what it needs.",
        "Grant what the message names, or set `internalTopics.management: VerifyOnly`.",
    ),
    Reason.BAD_CONFIGURATION: Explanation(
        "BrokersReachable", "The settings of the Kafka clients are refused.", _SEE_MESSAGE
    ),
    Reason.SECRET_MISSING: Explanation(
        "BrokersReachable", "A Secret that `kafka` names is missing, or a key of it.", "Create the Secret or the key."
    ),
    Reason.TOPICS_FIT: Explanation("TopicsReady", "All topics exist and are as the topology needs them.", ""),
    Reason.TOPICS_UNKNOWN: Explanation(
        "TopicsReady", "The plan or the brokers' answer is missing.", "Look at BrokersReachable and Stalled."
    ),
    Reason.INPUT_TOPIC_MISSING: Explanation(
        "TopicsReady",
        "An input topic does not exist. The operator never creates one.",
        "Create it, or correct its name.",
    ),
    Reason.PARTITIONS_DISAGREE: Explanation(
        "TopicsReady",
        "Topics that are joined or merged do not have the same number of partitions.",
        "Create them alike, or repartition one in the topology.",
    ),
    Reason.INTERNAL_TOPIC_MISSING: Explanation(
        "TopicsReady",
        "`internalTopics.management` is VerifyOnly and a topic does not exist.",
        "Create it as the message says (`millrace plan` shows all).",
    ),
    Reason.TOPICS_BEING_CREATED: Explanation("TopicsReady", "The operator is creating internal topics.", _WAIT),
    Reason.TOO_FEW_BROKERS: Explanation(
        "TopicsReady",
        "There are fewer brokers than `internalTopics.replicationFactor`.",
        "Add brokers, or lower it.",
    ),
    Reason.TOPIC_MISCONFIGURED: Explanation(
        "TopicsReady",
        "An internal topic has other partitions or another clean-up policy than the state needs, or cannot be written to.",
        "Do what the message says; a StreamsReset makes the topics anew.",
    ),
    Reason.DEAD_LETTER_TOPIC_MISSING: Explanation(
        "TopicsReady",
        "The topic of `processing.deadLetterTopic` does not exist. Nothing is held back, as brokers may create it on demand; "
        "without it pods do not start.",
        "Create it, or correct its name.",
    ),
    Reason.TOPIC_DIFFERS: Explanation(
        "TopicsReady",
        "An internal topic works but is not as wanted: replication, min.insync.replicas or retention. Nothing is held back.",
        "Alter the topic as the message says.",
    ),
    Reason.CHANGELOG_LOST: Explanation(
        "TopicsReady",
        "A changelog topic that the operator knew is gone, or was made anew. It is not made again: state would be lost silently.",
        "Reset the application with a StreamsReset, or accept the loss with the annotation that the message shows.",
    ),
    Reason.REPARTITION_TOPIC_LOST: Explanation(
        "TopicsReady",
        "A repartition topic that the operator knew is gone, or was made anew: records on their way were lost.",
        "Reset the application with a StreamsReset, or accept the loss with the annotation that the message shows.",
    ),
    Reason.COMPATIBLE: Explanation("TopologyCompatible", "The topology can go on from the state there is.", ""),
    Reason.PLAN_PENDING: Explanation(
        "TopologyCompatible", "The plan of the new topology is not known.", "Wait, or look at Stalled."
    ),
    Reason.NEEDS_RESET: Explanation(
        "TopologyCompatible",
        "The new topology would leave state behind or misread it; what runs is not touched.",
        "Take the change back, reset the application with a StreamsReset, or set `upgrade.topologyPolicy: Warn`.",
    ),
    Reason.NEEDS_RESET_IGNORED: Explanation(
        "TopologyCompatible",
        "The new topology leaves state behind or misreads it, and runs all the same: `upgrade.topologyPolicy` is Warn.",
        "Check the results.",
    ),
    Reason.RESTORED: Explanation("StateRestored", "No task restores state.", ""),
    Reason.RESTORING: Explanation("StateRestored", "Tasks read their changelogs before they go on.", _WAIT),
    Reason.RESTORATION_UNKNOWN: Explanation("StateRestored", "No pod has told of its tasks.", "Look at Ready."),
    Reason.SCALING_POSSIBLE: Explanation("ScalingAllowed", "The number of replicas may be changed.", ""),
    Reason.NOT_RUNNING: Explanation("ScalingAllowed", "The application does not run.", "Look at Ready."),
    Reason.TASKS_MOVE: Explanation("ScalingAllowed", "The group rebalances.", _WAIT),
    Reason.STATE_IS_RESTORED: Explanation("ScalingAllowed", "State is being restored.", _WAIT),
    Reason.UPGRADE_IN_PROGRESS: Explanation("ScalingAllowed", "Pods are being replaced.", _WAIT),
    Reason.SCALING_IN_PROGRESS: Explanation(
        "ScalingAllowed", "The number of replicas is being changed already.", _WAIT
    ),
    Reason.BROKERS_AWAY: Explanation("ScalingAllowed", "The brokers do not answer.", "Look at BrokersReachable."),
    Reason.VOLUMES_FIT: Explanation("StorageHealthy", "Volumes are as wanted and have room.", ""),
    Reason.VOLUME_NEARLY_FULL: Explanation(
        "StorageHealthy",
        "A volume is more than 85 % full.",
        "Raise `storage.size`, or add replicas so that each holds fewer tasks.",
    ),
    Reason.EXPANSION_UNSUPPORTED: Explanation(
        "StorageHealthy",
        "`storage.size` has grown, but the storage class does not let volumes grow.",
        "Set `allowVolumeExpansion: true` on the class if its driver can, or set the size back.",
    ),
    Reason.SHRINKING_REFUSED: Explanation(
        "StorageHealthy",
        "`storage.size` is less than the volumes have, and volumes cannot shrink.",
        "Set the size back.",
    ),
    Reason.VOLUME_PENDING: Explanation(
        "StorageHealthy",
        "A volume has not been provided, or not been made larger yet.",
        "If it stays: check the storage class and the events of the claim.",
    ),
    Reason.NOT_ROLLED_BACK: Explanation("RolledBack", "The wanted revision was not rolled back.", ""),
    Reason.POD_CRASHED: Explanation(
        "RolledBack",
        "A pod of the new revision crashed, and the old revision was brought back.",
        "Correct it and change the spec; another `restartNonce` is enough to try again.",
    ),
    Reason.IMAGE_UNAVAILABLE: Explanation(
        "RolledBack",
        "The new image could not be pulled, and the old revision was brought back.",
        "Correct the image; or make it available and set another `restartNonce`.",
    ),
    Reason.READY_TIMEOUT: Explanation(
        "RolledBack",
        "A pod of the new revision was not ready within `upgrade.gate.readyTimeout`, and the old revision was brought back.",
        "Find out why; or give it more time, and set another `restartNonce` to try again.",
    ),
    Reason.UPGRADE_NOT_BEGUN: Explanation(
        "RolledBack",
        "The new revision failed before a pod was touched: the old one runs on.",
        "Look at Stalled.",
    ),
    Reason.NOT_PAUSED: Explanation("ReconciliationPaused", "The operator does its work.", ""),
    Reason.PAUSED_BY_ANNOTATION: Explanation(
        "ReconciliationPaused",
        "The annotation `streams.millrace.dev/pause` keeps the operator from changing anything but the status.",
        "Remove the annotation.",
    ),
}
"""By reason: the condition it belongs to, what it means, and the remedy."""
