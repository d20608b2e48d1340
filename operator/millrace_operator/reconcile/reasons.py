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


class Explanation(NamedTuple):
    """What a reason means."""

    condition: ConditionType
    meaning: str
    remedy: str
    """What to do; empty if nothing need be done."""


PASSES: Final = "Nothing; it passes."
"""The remedy of what belongs to the course of things."""
_SEE_MESSAGE: Final = "Correct what the message names."

REASONS: Final[Mapping[str, Explanation]] = {
    Reason.ALL_TASKS_RUN: Explanation("Ready", "All pods run all tasks that are assigned to them.", ""),
    Reason.SCALED_TO_ZERO: Explanation(
        "Ready", "No replicas are wanted, and none are left.", "Set `replicas` to process again."
    ),
    Reason.NOTHING_RUNS: Explanation(
        "Ready", "There are no pods yet; the message says why.", "Look at Stalled, BrokersReachable and Reconciling."
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
    Reason.SUSPENDED: Explanation(
        "Ready",
        "The application is suspended: `True` once no pods are left, as the spec says.",
        "Set `state: running`.",
    ),
    Reason.DELETING: Explanation("Ready", "The application is being deleted.", PASSES),
    Reason.UP_TO_DATE: Explanation("Reconciling", "The cluster is as the spec wants it.", ""),
    Reason.HELD_BACK: Explanation(
        "Reconciling",
        "Nothing more is done until somebody does something.",
        "Look at Stalled and ReconciliationPaused.",
    ),
    Reason.PLANNING: Explanation("Reconciling", "The image is being asked for its topology plan.", PASSES),
    Reason.PROVISIONING_TOPICS: Explanation("Reconciling", "Internal topics are being created.", PASSES),
    Reason.WAITING_FOR_BROKERS: Explanation(
        "Reconciling", "The brokers have to answer before anything is started.", "Look at BrokersReachable."
    ),
    Reason.WAITING_FOR_TOPICS: Explanation(
        "Reconciling", "Topics have to exist and fit first.", "Look at TopicsReady."
    ),
    Reason.STARTING_PODS: Explanation("Reconciling", "Pods are starting.", PASSES),
    Reason.REPLACING_PODS: Explanation("Reconciling", "Pods are being brought to another revision.", PASSES),
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
    Reason.RENEWING_PODS: Explanation(
        "Reconciling",
        "Pods are replaced one after another, as this version of the operator builds them differently.",
        "Nothing; it passes.",
    ),
    Reason.ROLLING_BACK: Explanation(
        "Reconciling", "Pods go back to the revision that ran before.", "Look at RolledBack."
    ),
    Reason.SCALING_OUT: Explanation("Reconciling", "Pods are being added.", PASSES),
    Reason.DRAINING: Explanation("Reconciling", "A pod hands its tasks over before it is removed.", PASSES),
    Reason.SUSPENDING: Explanation("Reconciling", "Pods commit and stop.", PASSES),
    Reason.RESIZING_VOLUMES: Explanation("Reconciling", "Volumes are being made larger.", PASSES),
    Reason.RECREATING_STATEFUL_SET: Explanation(
        "Reconciling", "The StatefulSet is replaced under its running pods, as it cannot be changed in place.", PASSES
    ),
    Reason.WAITING_FOR_HANDOVER: Explanation(
        "Reconciling", "The application begins when nobody else is left in its group.", "Look at ApplicationIdUnique."
    ),
    Reason.DELETING_CHILDREN: Explanation("Reconciling", "What the deletion policy says is being deleted.", PASSES),
    Reason.DELETING_FROM_KAFKA: Explanation(
        "Reconciling", "The brokers are told to delete what the deletion policy says, and to let members go.", PASSES
    ),
    Reason.NOT_STALLED: Explanation("Stalled", "Nothing keeps the operator from going on.", ""),
    Reason.INVALID_SPEC: Explanation(
        "Stalled", "The spec breaks a rule; the running application is not touched.", _SEE_MESSAGE
    ),
    Reason.NAME_TAKEN: Explanation(
        "Stalled",
        "An object that is not this StreamsApp's has a name that one of its children is to have. It is neither changed nor "
        "deleted, and all that does not need the name goes on.",
        "Delete or hand over the object as the message says, or give the StreamsApp another name.",
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
    Reason.RENEWAL_FAILED: Explanation(
        "Stalled",
        "A pod as this version of the operator builds it fails or is not ready in time; the other pods are left as they are.",
        "Read the message and the pod's logs. If the program is not at fault, install the operator's last version again.",
    ),
    Reason.APPLICATION_ID_IN_USE: Explanation(
        "Stalled",
        "The application does not begin, because its `applicationId` is somebody else's as well.",
        "Look at ApplicationIdUnique.",
    ),
    Reason.REFUSED_BY_API_SERVER: Explanation(
        "Stalled",
        "The API server refuses what the message names: a quota, an admission policy or webhook, or the operator's role. "
        "What does not rest on it goes on.",
        "Change what refuses it; it is tried again by itself, and at once when the spec changes.",
    ),
    Reason.REFUSED_BY_KAFKA: Explanation(
        "Stalled",
        "The brokers refuse what the message names.",
        "Grant the application's user what it needs; it is tried again by itself.",
    ),
    Reason.ACTION_FAILED: Explanation(
        "Stalled",
        "Something did not answer several times, or a pod did not do what it was told.",
        "Look at what the message names: the API server, a webhook, the brokers or a pod. It is tried again by itself.",
    ),
    Reason.OPERATOR_ERROR: Explanation(
        "Stalled",
        "The operator failed on this resource by a fault of its own; other applications are not affected.",
        "Please report it with the operator's log.",
    ),
    Reason.BROKERS_ANSWER: Explanation(
        "BrokersReachable", "The brokers answer, with the application's credentials.", ""
    ),
    Reason.BROKERS_NOT_ASKED: Explanation("BrokersReachable", "The brokers have not been asked yet.", PASSES),
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
    Reason.TOKEN_ENDPOINT_NOT_ALLOWED: Explanation(
        "BrokersReachable",
        "The Secret of `kafka.auth` names a token endpoint from which the operator may not fetch tokens.",
        "The platform team adds it to `MILLRACE_OPERATOR_TOKEN_ENDPOINTS` (`operator.tokenEndpoints` in the chart).",
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
    Reason.TOPICS_BEING_CREATED: Explanation("TopicsReady", "The operator is creating internal topics.", PASSES),
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
    Reason.RESTORING: Explanation("StateRestored", "Tasks read their changelogs before they go on.", PASSES),
    Reason.RESTORATION_UNKNOWN: Explanation("StateRestored", "No pod has told of its tasks.", "Look at Ready."),
    Reason.SCALING_POSSIBLE: Explanation("ScalingAllowed", "The number of replicas may be changed.", ""),
    Reason.NOT_RUNNING: Explanation("ScalingAllowed", "The application does not run.", "Look at Ready."),
    Reason.TASKS_MOVE: Explanation("ScalingAllowed", "The group rebalances.", PASSES),
    Reason.STATE_IS_RESTORED: Explanation("ScalingAllowed", "State is being restored.", PASSES),
    Reason.UPGRADE_IN_PROGRESS: Explanation("ScalingAllowed", "Pods are being replaced.", PASSES),
    Reason.SCALING_IN_PROGRESS: Explanation(
        "ScalingAllowed", "The number of replicas is being changed already.", PASSES
    ),
    Reason.BROKERS_AWAY: Explanation("ScalingAllowed", "The brokers cannot be asked.", "Look at BrokersReachable."),
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
    Reason.TEMPLATE_IN_USE: Explanation("PodsCurrent", "All pods are as this version of the operator builds them.", ""),
    Reason.TEMPLATE_OUTDATED: Explanation(
        "PodsCurrent",
        "Another version of the operator has made some pods, and this one builds them differently. They run on, and are replaced "
        "when it is the application's turn: the operator does that for few applications at a time.",
        "Nothing; or set another `restartNonce` to have them replaced now.",
    ),
    Reason.RENEWAL_UNDER_WAY: Explanation(
        "PodsCurrent",
        "It is the application's turn: pods that another version of the operator has made are replaced.",
        "Look at Reconciling and Stalled.",
    ),
    Reason.NOT_PAUSED: Explanation("ReconciliationPaused", "The operator does its work.", ""),
    Reason.PAUSED_BY_ANNOTATION: Explanation(
        "ReconciliationPaused",
        "The annotation `streams.millrace.dev/pause` keeps the operator from changing anything but the status.",
        "Remove the annotation.",
    ),
    Reason.UNIQUE: Explanation(
        "ApplicationIdUnique", "No other application with the same id has a better right to it.", ""
    ),
    Reason.MEMBERS_UNKNOWN: Explanation(
        "ApplicationIdUnique",
        "The brokers have to say first who is in the consumer group.",
        "Look at BrokersReachable.",
    ),
    Reason.DUPLICATE_APPLICATION_ID: Explanation(
        "ApplicationIdUnique",
        "Another StreamsApp has the same `applicationId` on the same brokers, and runs or is older. This one does not begin; "
        "if it runs already, it runs on.",
        "Delete one of them, or let one take over with `handover`.",
    ),
    Reason.HANDED_OVER: Explanation(
        "ApplicationIdUnique",
        "Another StreamsApp takes the application id over: its `handover` names this one, which does not begin again.",
        "Delete it with the policy `Retain` or `Purge`; topics and group are the other one's then. Or remove that `handover`.",
    ),
    Reason.GROUP_IN_USE: Explanation(
        "ApplicationIdUnique",
        "Members of the consumer group are not pods of this StreamsApp, so it does not begin.",
        "Set `handover` to take their place; delete the StreamsApp if it has their id by mistake; or stop them.",
    ),
    Reason.MEMBERS_LEFT: Explanation(
        "ApplicationIdUnique",
        "Members that are not pods of this StreamsApp have left the group. They may only be restarting, so it begins when none "
        "has been seen for five minutes.",
        "Wait; or set another `restartNonce` if they are gone for good.",
    ),
    Reason.HANDOVER_PENDING: Explanation(
        "ApplicationIdUnique",
        "The application that is taken over from still runs, or its members are still in the group.",
        "Stop it as the message says.",
    ),
}
"""By reason: the condition it belongs to, what it means, and the remedy."""
