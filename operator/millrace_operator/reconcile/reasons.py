"""Every reason that a condition of a StreamsApp may give: what it means, and what its reader can do.

The table is data so that the operations guide can be held to it. A reason belongs to one condition only, so that the reason alone
says what is meant. What applies to a case (names, numbers) is in the condition's message.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from millrace.manifest.status import ConditionType


class ConditionReason(StrEnum):
    """Why a condition is as it is, in one word."""

    ALL_TASKS_RUN = "AllTasksRun"
    SCALED_TO_ZERO = "ScaledToZero"
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
    RENEWING_PODS = "RenewingPods"
    ROLLING_BACK = "RollingBack"
    SCALING_OUT = "ScalingOut"
    DRAINING = "Draining"
    SUSPENDING = "Suspending"
    RESIZING_VOLUMES = "ResizingVolumes"
    RECREATING_STATEFUL_SET = "RecreatingStatefulSet"
    WAITING_FOR_HANDOVER = "WaitingForHandover"
    DELETING_CHILDREN = "DeletingChildren"
    DELETING_FROM_KAFKA = "DeletingFromKafka"

    NOT_STALLED = "NotStalled"
    INVALID_SPEC = "InvalidSpec"
    NAME_TAKEN = "NameTaken"
    PLAN_FAILED = "PlanFailed"
    PLAN_IMAGE_UNAVAILABLE = "PlanImageUnavailable"
    TOPOLOGY_HELD_BACK = "TopologyHeldBack"
    TOPICS_UNFIT = "TopicsUnfit"
    START_FAILED = "StartFailed"
    UPGRADE_FAILED = "UpgradeFailed"
    RENEWAL_FAILED = "RenewalFailed"
    APPLICATION_ID_IN_USE = "ApplicationIdInUse"
    REFUSED_BY_API_SERVER = "RefusedByApiServer"
    REFUSED_BY_KAFKA = "RefusedByKafka"
    ACTION_FAILED = "ActionFailed"
    OPERATOR_ERROR = "OperatorError"

    BROKERS_ANSWER = "BrokersAnswer"
    BROKERS_NOT_ASKED = "NotAsked"
    UNREACHABLE = "Unreachable"
    AUTHENTICATION_FAILED = "AuthenticationFailed"
    NOT_AUTHORIZED = "NotAuthorized"
    BAD_CONFIGURATION = "BadConfiguration"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 (the name of a reason)
    TOKEN_ENDPOINT_NOT_ALLOWED = "TokenEndpointNotAllowed"  # noqa: S105 (the name of a reason)

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

    TEMPLATE_IN_USE = "TemplateInUse"
    TEMPLATE_OUTDATED = "TemplateOutdated"
    RENEWAL_UNDER_WAY = "RenewalUnderWay"

    NOT_PAUSED = "NotPaused"
    PAUSED_BY_ANNOTATION = "PausedByAnnotation"

    UNIQUE = "Unique"
    MEMBERS_UNKNOWN = "MembersUnknown"
    DUPLICATE_APPLICATION_ID = "DuplicateApplicationId"
    HANDED_OVER = "HandedOver"
    GROUP_IN_USE = "GroupInUse"
    MEMBERS_LEFT = "MembersLeft"
    HANDOVER_PENDING = "HandoverPending"


class ReasonMeaning(NamedTuple):
    """What a reason means."""

    condition: ConditionType
    meaning: str
    remedy: str
    """What to do; empty if nothing need be done."""


NO_ACTION: Final = "Nothing; it passes."
"""The remedy of what belongs to the course of things."""
_SEE_MESSAGE: Final = "Correct what the message names."

REASONS: Final[Mapping[str, ReasonMeaning]] = {
    ConditionReason.ALL_TASKS_RUN: ReasonMeaning("Ready", "All pods run all tasks that are assigned to them.", ""),
    ConditionReason.SCALED_TO_ZERO: ReasonMeaning(
        "Ready", "No replicas are wanted, and none are left.", "Set `replicas` to process again."
    ),
    ConditionReason.NOTHING_RUNS: ReasonMeaning(
        "Ready", "There are no pods yet; the message says why.", "Look at Stalled, BrokersReachable and Reconciling."
    ),
    ConditionReason.PODS_NOT_READY: ReasonMeaning(
        "Ready",
        "Some pods start, restore state or wait for the group.",
        "Wait; look at StateRestored and BrokersReachable.",
    ),
    ConditionReason.PODS_FAILING: ReasonMeaning(
        "Ready",
        "Some pods crash or cannot start.",
        "Read the message and the pods' logs; change the spec or the program.",
    ),
    ConditionReason.SUSPENDED: ReasonMeaning(
        "Ready",
        "The application is suspended: `True` once no pods are left, as the spec says.",
        "Set `state: running`.",
    ),
    ConditionReason.DELETING: ReasonMeaning("Ready", "The application is being deleted.", NO_ACTION),
    ConditionReason.UP_TO_DATE: ReasonMeaning("Reconciling", "The cluster is as the spec wants it.", ""),
    ConditionReason.HELD_BACK: ReasonMeaning(
        "Reconciling",
        "Nothing more is done until somebody does something.",
        "Look at Stalled and ReconciliationPaused.",
    ),
    ConditionReason.PLANNING: ReasonMeaning(
        "Reconciling", "The image is being asked for its topology plan.", NO_ACTION
    ),
    ConditionReason.PROVISIONING_TOPICS: ReasonMeaning("Reconciling", "Internal topics are being created.", NO_ACTION),
    ConditionReason.WAITING_FOR_BROKERS: ReasonMeaning(
        "Reconciling", "The brokers have to answer before anything is started.", "Look at BrokersReachable."
    ),
    ConditionReason.WAITING_FOR_TOPICS: ReasonMeaning(
        "Reconciling", "Topics have to exist and fit first.", "Look at TopicsReady."
    ),
    ConditionReason.STARTING_PODS: ReasonMeaning("Reconciling", "Pods are starting.", NO_ACTION),
    ConditionReason.REPLACING_PODS: ReasonMeaning(
        "Reconciling", "Pods are being brought to another revision.", NO_ACTION
    ),
    ConditionReason.WAITING_FOR_GATE: ReasonMeaning(
        "Reconciling",
        "The next pod is replaced when the group is stable, nothing restores and the lag is within `upgrade.gate.maxLag`.",
        "Wait, or widen `upgrade.gate`.",
    ),
    ConditionReason.RENEWING_CREDENTIALS: ReasonMeaning(
        "Reconciling",
        "Certificates or keys have changed, and pods are restarted one after another to use them.",
        "Wait. If a restarted pod does not become ready, the new certificates do not do: correct the Secret.",
    ),
    ConditionReason.RENEWING_PODS: ReasonMeaning(
        "Reconciling",
        "Pods are replaced one after another, as this version of the operator builds them differently.",
        "Nothing; it passes.",
    ),
    ConditionReason.ROLLING_BACK: ReasonMeaning(
        "Reconciling", "Pods go back to the revision that ran before.", "Look at RolledBack."
    ),
    ConditionReason.SCALING_OUT: ReasonMeaning("Reconciling", "Pods are being added.", NO_ACTION),
    ConditionReason.DRAINING: ReasonMeaning(
        "Reconciling", "A pod hands its tasks over before it is removed.", NO_ACTION
    ),
    ConditionReason.SUSPENDING: ReasonMeaning("Reconciling", "Pods commit and stop.", NO_ACTION),
    ConditionReason.RESIZING_VOLUMES: ReasonMeaning("Reconciling", "Volumes are being made larger.", NO_ACTION),
    ConditionReason.RECREATING_STATEFUL_SET: ReasonMeaning(
        "Reconciling",
        "The StatefulSet is replaced under its running pods, as it cannot be changed in place.",
        NO_ACTION,
    ),
    ConditionReason.WAITING_FOR_HANDOVER: ReasonMeaning(
        "Reconciling", "The application begins when nobody else is left in its group.", "Look at ApplicationIdUnique."
    ),
    ConditionReason.DELETING_CHILDREN: ReasonMeaning(
        "Reconciling", "What the deletion policy says is being deleted.", NO_ACTION
    ),
    ConditionReason.DELETING_FROM_KAFKA: ReasonMeaning(
        "Reconciling",
        "The brokers are told to delete what the deletion policy says, and to let members go.",
        NO_ACTION,
    ),
    ConditionReason.NOT_STALLED: ReasonMeaning("Stalled", "Nothing keeps the operator from going on.", ""),
    ConditionReason.INVALID_SPEC: ReasonMeaning(
        "Stalled", "The spec breaks a rule; the running application is not touched.", _SEE_MESSAGE
    ),
    ConditionReason.NAME_TAKEN: ReasonMeaning(
        "Stalled",
        "An object that is not this StreamsApp's has a name that one of its children is to have. It is neither changed nor "
        "deleted, and all that does not need the name goes on.",
        "Delete or hand over the object as the message says, or give the StreamsApp another name.",
    ),
    ConditionReason.PLAN_FAILED: ReasonMeaning(
        "Stalled",
        "The image could not say what its topology needs; the message has its last lines. What runs is not touched.",
        "Correct the program or the spec. To try again unchanged, set another `restartNonce`.",
    ),
    ConditionReason.PLAN_IMAGE_UNAVAILABLE: ReasonMeaning(
        "Stalled",
        "The image cannot be pulled, so its plan is not known. What runs is not touched.",
        "Correct `image` or `imagePullSecrets`; or make the image available and set another `restartNonce`.",
    ),
    ConditionReason.TOPOLOGY_HELD_BACK: ReasonMeaning(
        "Stalled", "The new topology cannot go on from the state there is.", "Look at TopologyCompatible."
    ),
    ConditionReason.TOPICS_UNFIT: ReasonMeaning(
        "Stalled", "Internal topics do not fit, and must not be changed.", "Look at TopicsReady."
    ),
    ConditionReason.START_FAILED: ReasonMeaning(
        "Stalled",
        "The application has never run well, and its pods fail, so there is nothing to go back to.",
        "Read the message and the pods' logs; change the spec or the program.",
    ),
    ConditionReason.UPGRADE_FAILED: ReasonMeaning(
        "Stalled",
        "New pods fail or are not ready in time, and rolling back is off or was done.",
        "Correct the spec; or set another `restartNonce` to try the failed revision again.",
    ),
    ConditionReason.RENEWAL_FAILED: ReasonMeaning(
        "Stalled",
        "A pod as this version of the operator builds it fails or is not ready in time; the other pods are left as they are.",
        "Read the message and the pod's logs. If the program is not at fault, install the operator's last version again.",
    ),
    ConditionReason.APPLICATION_ID_IN_USE: ReasonMeaning(
        "Stalled",
        "The application does not begin, because its `applicationId` is somebody else's as well.",
        "Look at ApplicationIdUnique.",
    ),
    ConditionReason.REFUSED_BY_API_SERVER: ReasonMeaning(
        "Stalled",
        "The API server refuses what the message names: a quota, an admission policy or webhook, or the operator's role. "
        "What does not rest on it goes on.",
        "Change what refuses it; it is tried again by itself, and at once when the spec changes.",
    ),
    ConditionReason.REFUSED_BY_KAFKA: ReasonMeaning(
        "Stalled",
        "The brokers refuse what the message names.",
        "Grant the application's user what it needs; it is tried again by itself.",
    ),
    ConditionReason.ACTION_FAILED: ReasonMeaning(
        "Stalled",
        "Something did not answer several times, or a pod did not do what it was told.",
        "Look at what the message names: the API server, a webhook, the brokers or a pod. It is tried again by itself.",
    ),
    ConditionReason.OPERATOR_ERROR: ReasonMeaning(
        "Stalled",
        "The operator failed on this resource by a fault of its own; other applications are not affected.",
        "Please report it with the operator's log.",
    ),
    ConditionReason.BROKERS_ANSWER: ReasonMeaning(
        "BrokersReachable", "The brokers answer, with the application's credentials.", ""
    ),
    ConditionReason.BROKERS_NOT_ASKED: ReasonMeaning(
        "BrokersReachable", "The brokers have not been asked yet.", NO_ACTION
    ),
    ConditionReason.UNREACHABLE: ReasonMeaning(
        "BrokersReachable",
        "No broker answers. Running pods are left alone; nothing new is started.",
        "Check `kafka.bootstrapServers`, the brokers, and network policies.",
    ),
    ConditionReason.AUTHENTICATION_FAILED: ReasonMeaning(
        "BrokersReachable", "The brokers refuse the credentials.", "Correct the Secret that `kafka.auth` names."
    ),
    ConditionReason.NOT_AUTHORIZED: ReasonMeaning(
        "BrokersReachable",
        "The application's user may not describe or create what it needs.",
        "Grant what the message names, or set `internalTopics.management: VerifyOnly`.",
    ),
    ConditionReason.BAD_CONFIGURATION: ReasonMeaning(
        "BrokersReachable", "The settings of the Kafka clients are refused.", _SEE_MESSAGE
    ),
    ConditionReason.SECRET_MISSING: ReasonMeaning(
        "BrokersReachable", "A Secret that `kafka` names is missing, or a key of it.", "Create the Secret or the key."
    ),
    ConditionReason.TOKEN_ENDPOINT_NOT_ALLOWED: ReasonMeaning(
        "BrokersReachable",
        "The Secret of `kafka.auth` names a token endpoint from which the operator may not fetch tokens.",
        "The platform team adds it to `MILLRACE_OPERATOR_TOKEN_ENDPOINTS` (`operator.tokenEndpoints` in the chart).",
    ),
    ConditionReason.TOPICS_FIT: ReasonMeaning(
        "TopicsReady", "All topics exist and are as the topology needs them.", ""
    ),
    ConditionReason.TOPICS_UNKNOWN: ReasonMeaning(
        "TopicsReady", "The plan or the brokers' answer is missing.", "Look at BrokersReachable and Stalled."
    ),
    ConditionReason.INPUT_TOPIC_MISSING: ReasonMeaning(
        "TopicsReady",
        "An input topic does not exist. The operator never creates one.",
        "Create it, or correct its name.",
    ),
    ConditionReason.PARTITIONS_DISAGREE: ReasonMeaning(
        "TopicsReady",
        "Topics that are joined or merged do not have the same number of partitions.",
        "Create them alike, or repartition one in the topology.",
    ),
    ConditionReason.INTERNAL_TOPIC_MISSING: ReasonMeaning(
        "TopicsReady",
        "`internalTopics.management` is VerifyOnly and a topic does not exist.",
        "Create it as the message says (`millrace plan` shows all).",
    ),
    ConditionReason.TOPICS_BEING_CREATED: ReasonMeaning(
        "TopicsReady", "The operator is creating internal topics.", NO_ACTION
    ),
    ConditionReason.TOO_FEW_BROKERS: ReasonMeaning(
        "TopicsReady",
        "There are fewer brokers than `internalTopics.replicationFactor`.",
        "Add brokers, or lower it.",
    ),
    ConditionReason.TOPIC_MISCONFIGURED: ReasonMeaning(
        "TopicsReady",
        "An internal topic has other partitions or another clean-up policy than the state needs, or cannot be written to.",
        "Do what the message says; a StreamsReset makes the topics anew.",
    ),
    ConditionReason.DEAD_LETTER_TOPIC_MISSING: ReasonMeaning(
        "TopicsReady",
        "The topic of `processing.deadLetterTopic` does not exist. Nothing is held back, as brokers may create it on demand; "
        "without it pods do not start.",
        "Create it, or correct its name.",
    ),
    ConditionReason.TOPIC_DIFFERS: ReasonMeaning(
        "TopicsReady",
        "An internal topic works but is not as wanted: replication, min.insync.replicas or retention. Nothing is held back.",
        "Alter the topic as the message says.",
    ),
    ConditionReason.CHANGELOG_LOST: ReasonMeaning(
        "TopicsReady",
        "A changelog topic that the operator knew is gone, or was made anew. It is not made again: state would be lost silently.",
        "Reset the application with a StreamsReset, or accept the loss with the annotation that the message shows.",
    ),
    ConditionReason.REPARTITION_TOPIC_LOST: ReasonMeaning(
        "TopicsReady",
        "A repartition topic that the operator knew is gone, or was made anew: records on their way were lost.",
        "Reset the application with a StreamsReset, or accept the loss with the annotation that the message shows.",
    ),
    ConditionReason.COMPATIBLE: ReasonMeaning(
        "TopologyCompatible", "The topology can go on from the state there is.", ""
    ),
    ConditionReason.PLAN_PENDING: ReasonMeaning(
        "TopologyCompatible", "The plan of the new topology is not known.", "Wait, or look at Stalled."
    ),
    ConditionReason.NEEDS_RESET: ReasonMeaning(
        "TopologyCompatible",
        "The new topology would leave state behind or misread it; what runs is not touched.",
        "Take the change back, reset the application with a StreamsReset, or set `upgrade.topologyPolicy: Warn`.",
    ),
    ConditionReason.NEEDS_RESET_IGNORED: ReasonMeaning(
        "TopologyCompatible",
        "The new topology leaves state behind or misreads it, and runs all the same: `upgrade.topologyPolicy` is Warn.",
        "Check the results.",
    ),
    ConditionReason.RESTORED: ReasonMeaning("StateRestored", "No task restores state.", ""),
    ConditionReason.RESTORING: ReasonMeaning(
        "StateRestored", "Tasks read their changelogs before they go on.", NO_ACTION
    ),
    ConditionReason.RESTORATION_UNKNOWN: ReasonMeaning(
        "StateRestored", "No pod has told of its tasks.", "Look at Ready."
    ),
    ConditionReason.SCALING_POSSIBLE: ReasonMeaning("ScalingAllowed", "The number of replicas may be changed.", ""),
    ConditionReason.NOT_RUNNING: ReasonMeaning("ScalingAllowed", "The application does not run.", "Look at Ready."),
    ConditionReason.TASKS_MOVE: ReasonMeaning("ScalingAllowed", "The group rebalances.", NO_ACTION),
    ConditionReason.STATE_IS_RESTORED: ReasonMeaning("ScalingAllowed", "State is being restored.", NO_ACTION),
    ConditionReason.UPGRADE_IN_PROGRESS: ReasonMeaning("ScalingAllowed", "Pods are being replaced.", NO_ACTION),
    ConditionReason.SCALING_IN_PROGRESS: ReasonMeaning(
        "ScalingAllowed", "The number of replicas is being changed already.", NO_ACTION
    ),
    ConditionReason.BROKERS_AWAY: ReasonMeaning(
        "ScalingAllowed", "The brokers cannot be asked.", "Look at BrokersReachable."
    ),
    ConditionReason.VOLUMES_FIT: ReasonMeaning("StorageHealthy", "Volumes are as wanted and have room.", ""),
    ConditionReason.VOLUME_NEARLY_FULL: ReasonMeaning(
        "StorageHealthy",
        "A volume is more than 85 % full.",
        "Raise `storage.size`, or add replicas so that each holds fewer tasks.",
    ),
    ConditionReason.EXPANSION_UNSUPPORTED: ReasonMeaning(
        "StorageHealthy",
        "`storage.size` has grown, but the storage class does not let volumes grow.",
        "Set `allowVolumeExpansion: true` on the class if its driver can, or set the size back.",
    ),
    ConditionReason.SHRINKING_REFUSED: ReasonMeaning(
        "StorageHealthy",
        "`storage.size` is less than the volumes have, and volumes cannot shrink.",
        "Set the size back.",
    ),
    ConditionReason.VOLUME_PENDING: ReasonMeaning(
        "StorageHealthy",
        "A volume has not been provided, or not been made larger yet.",
        "If it stays: check the storage class and the events of the claim.",
    ),
    ConditionReason.NOT_ROLLED_BACK: ReasonMeaning("RolledBack", "The wanted revision was not rolled back.", ""),
    ConditionReason.POD_CRASHED: ReasonMeaning(
        "RolledBack",
        "A pod of the new revision crashed, and the old revision was brought back.",
        "Correct it and change the spec; another `restartNonce` is enough to try again.",
    ),
    ConditionReason.IMAGE_UNAVAILABLE: ReasonMeaning(
        "RolledBack",
        "The new image could not be pulled, and the old revision was brought back.",
        "Correct the image; or make it available and set another `restartNonce`.",
    ),
    ConditionReason.READY_TIMEOUT: ReasonMeaning(
        "RolledBack",
        "A pod of the new revision was not ready within `upgrade.gate.readyTimeout`, and the old revision was brought back.",
        "Find out why; or give it more time, and set another `restartNonce` to try again.",
    ),
    ConditionReason.UPGRADE_NOT_BEGUN: ReasonMeaning(
        "RolledBack",
        "The new revision failed before a pod was touched: the old one runs on.",
        "Look at Stalled.",
    ),
    ConditionReason.TEMPLATE_IN_USE: ReasonMeaning(
        "PodsCurrent", "All pods are as this version of the operator builds them.", ""
    ),
    ConditionReason.TEMPLATE_OUTDATED: ReasonMeaning(
        "PodsCurrent",
        "Another version of the operator has made some pods, and this one builds them differently. They run on, and are replaced "
        "when it is the application's turn: the operator does that for few applications at a time.",
        "Nothing; or set another `restartNonce` to have them replaced now.",
    ),
    ConditionReason.RENEWAL_UNDER_WAY: ReasonMeaning(
        "PodsCurrent",
        "It is the application's turn: pods that another version of the operator has made are replaced.",
        "Look at Reconciling and Stalled.",
    ),
    ConditionReason.NOT_PAUSED: ReasonMeaning("ReconciliationPaused", "The operator does its work.", ""),
    ConditionReason.PAUSED_BY_ANNOTATION: ReasonMeaning(
        "ReconciliationPaused",
        "The annotation `streams.millrace.dev/pause` keeps the operator from changing anything but the status.",
        "Remove the annotation.",
    ),
    ConditionReason.UNIQUE: ReasonMeaning(
        "ApplicationIdUnique", "No other application with the same id has a better right to it.", ""
    ),
    ConditionReason.MEMBERS_UNKNOWN: ReasonMeaning(
        "ApplicationIdUnique",
        "The brokers have to say first who is in the consumer group.",
        "Look at BrokersReachable.",
    ),
    ConditionReason.DUPLICATE_APPLICATION_ID: ReasonMeaning(
        "ApplicationIdUnique",
        "Another StreamsApp has the same `applicationId` on the same brokers, and runs or is older. This one does not begin; "
        "if it runs already, it runs on.",
        "Delete one of them, or let one take over with `handover`.",
    ),
    ConditionReason.HANDED_OVER: ReasonMeaning(
        "ApplicationIdUnique",
        "Another StreamsApp takes the application id over: its `handover` names this one, which does not begin again.",
        "Delete it with the policy `Retain` or `Purge`; topics and group are the other one's then. Or remove that `handover`.",
    ),
    ConditionReason.GROUP_IN_USE: ReasonMeaning(
        "ApplicationIdUnique",
        "Members of the consumer group are not pods of this StreamsApp, so it does not begin.",
        "Set `handover` to take their place; delete the StreamsApp if it has their id by mistake; or stop them.",
    ),
    ConditionReason.MEMBERS_LEFT: ReasonMeaning(
        "ApplicationIdUnique",
        "Members that are not pods of this StreamsApp have left the group. They may only be restarting, so it begins when none "
        "has been seen for five minutes.",
        "Wait; or set another `restartNonce` if they are gone for good.",
    ),
    ConditionReason.HANDOVER_PENDING: ReasonMeaning(
        "ApplicationIdUnique",
        "The application that is taken over from still runs, or its members are still in the group.",
        "Stop it as the message says.",
    ),
}
"""By reason: the condition it belongs to, what it means, and the remedy."""
