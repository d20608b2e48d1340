"""Every reason that a condition of a StreamsApp may give: what it means, and what its reader can do.

A reason belongs to one condition only, so the reason alone says what is meant. The specifics of a case (names, numbers) are in
the condition's message. `conditions` shows where reasons are decided. docs/conditions.md is generated from the members.
"""

from __future__ import annotations

from enum import StrEnum, unique
from typing import Self

from millrace.manifest.streamsapp_status import ConditionType

_NO_ACTION = "No action needed."
_SEE_MESSAGE = "Correct what the message names."


@unique
class ConditionReason(StrEnum):
    """Why a condition is as it is, in one word.

    A member is that word, the condition, the meaning, and the remedy unless all is well.
    """

    condition: ConditionType
    """The condition it belongs to."""
    meaning: str
    remedy: str
    """What to do; empty if all is well."""

    def __new__(cls, word: str, condition: ConditionType, meaning: str, remedy: str = "") -> Self:
        """Create the member for a word."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.condition, member.meaning, member.remedy = condition, meaning, remedy
        return member

    ALL_TASKS_RUN = "AllTasksRun", "Ready", "All pods are running their tasks."
    SCALED_TO_ZERO = (
        "ScaledToZero",
        "Ready",
        "The spec asks for no replicas, and no pods are left.",
        "To process records again, set `replicas` to 1 or more.",
    )
    NOTHING_RUNS = (
        "NothingRuns",
        "Ready",
        "There are no pods yet; the message says why.",
        "Look at Stalled, BrokersReachable and Reconciling.",
    )
    PODS_NOT_READY = (
        "PodsNotReady",
        "Ready",
        "Some pods are starting, restoring state or waiting for the group.",
        "Wait, or check StateRestored and BrokersReachable.",
    )
    PODS_FAILING = (
        "PodsFailing",
        "Ready",
        "Some pods crash or cannot start.",
        "Read the message and the pods' logs, then fix the spec or the program.",
    )
    SUSPENDED = (
        "Suspended",
        "Ready",
        "The application is suspended, as the spec says: `True` once all pods have stopped.",
        "To resume, set `state: running`.",
    )
    BACKFILLING = (
        "Backfilling",
        "Ready",
        "The application is stopped while a StreamsBackfill computes its state, or because one has left an inconsistent state.",
        "Read the StreamsBackfill's message.",
    )
    DELETING = "Deleting", "Ready", "The application is being deleted.", _NO_ACTION

    UP_TO_DATE = "UpToDate", "Reconciling", "The cluster matches the spec."
    HELD_BACK = (
        "HeldBack",
        "Reconciling",
        "The operator is waiting for somebody to intervene.",
        "Look at Stalled and ReconciliationPaused.",
    )
    PLANNING = "Planning", "Reconciling", "A Job is getting the topology plan from the image.", _NO_ACTION
    PROVISIONING_TOPICS = "ProvisioningTopics", "Reconciling", "Internal topics are being created.", _NO_ACTION
    WAITING_FOR_BROKERS = (
        "WaitingForBrokers",
        "Reconciling",
        "Nothing is started until the brokers answer.",
        "Look at BrokersReachable.",
    )
    WAITING_FOR_TOPICS = (
        "WaitingForTopics",
        "Reconciling",
        "Nothing is started until the topics exist with the right settings.",
        "Look at TopicsReady.",
    )
    STARTING_PODS = "StartingPods", "Reconciling", "Pods are starting.", _NO_ACTION
    REPLACING_PODS = "ReplacingPods", "Reconciling", "Pods are being replaced with another revision.", _NO_ACTION
    WAITING_FOR_GATE = (
        "WaitingForGate",
        "Reconciling",
        "The next pod is replaced when the group is stable, no task restores and the lag is within `upgrade.gate.maxLag`.",
        "Wait, or relax `upgrade.gate`.",
    )
    RENEWING_CREDENTIALS = (
        "RenewingCredentials",
        "Reconciling",
        "Certificates or keys have changed, so pods are being restarted one at a time to use them.",
        "Wait. If a restarted pod does not become ready, the new certificates do not work: correct the Secret.",
    )
    RENEWING_PODS = (
        "RenewingPods",
        "Reconciling",
        "Pods are being replaced one at a time, because this version of the operator builds them differently.",
        _NO_ACTION,
    )
    ROLLING_BACK = (
        "RollingBack",
        "Reconciling",
        "Pods are being rolled back to the previous revision.",
        "Look at RolledBack.",
    )
    SCALING_OUT = "ScalingOut", "Reconciling", "Pods are being added.", _NO_ACTION
    SWITCHING_GROUP_PROTOCOL = (
        "SwitchingGroupProtocol",
        "Reconciling",
        ("All pods are stopped and started again, because a group cannot have members with different group protocols."),
        "Wait. If others are in the group, stop them.",
    )
    DRAINING = "Draining", "Reconciling", "A pod is handing over its tasks before it is removed.", _NO_ACTION
    SUSPENDING = "Suspending", "Reconciling", "Pods are committing and stopping.", _NO_ACTION
    RESIZING_VOLUMES = "ResizingVolumes", "Reconciling", "Volumes are being enlarged.", _NO_ACTION
    RECREATING_STATEFUL_SET = (
        "RecreatingStatefulSet",
        "Reconciling",
        "The StatefulSet is replaced underneath its running pods, because it cannot be changed in place.",
        _NO_ACTION,
    )
    WAITING_FOR_HANDOVER = (
        "WaitingForHandover",
        "Reconciling",
        "The application starts when its consumer group has no other members.",
        "Look at ApplicationIdUnique.",
    )
    DELETING_CHILDREN = (
        "DeletingChildren",
        "Reconciling",
        "Everything that the deletion policy covers is being deleted.",
        _NO_ACTION,
    )
    DELETING_FROM_KAFKA = (
        "DeletingFromKafka",
        "Reconciling",
        "Topics, offsets and members are being deleted from Kafka, as the deletion policy says.",
        _NO_ACTION,
    )

    NOT_STALLED = "NotStalled", "Stalled", "Nothing is blocking the operator."
    INVALID_SPEC = (
        "InvalidSpec",
        "Stalled",
        "The spec is not valid. The running application is left unchanged.",
        _SEE_MESSAGE,
    )
    NAME_TAKEN = (
        "NameTaken",
        "Stalled",
        (
            "An object that does not belong to this StreamsApp has a name that one of its children needs. It is "
            "left unchanged, and everything that does not need the name continues."
        ),
        "Delete or hand over the object as the message says, or give the StreamsApp another name.",
    )
    PLAN_FAILED = (
        "PlanFailed",
        "Stalled",
        "The plan Job failed; the message has the last lines of its output. The running application is left unchanged.",
        "Fix the program or the spec. To retry without a change, change `restartNonce`.",
    )
    PLAN_IMAGE_UNAVAILABLE = (
        "PlanImageUnavailable",
        "Stalled",
        "The image cannot be pulled, so its plan is not known. The running application is left unchanged.",
        "Correct `image` or `imagePullSecrets`; or make the image available and change `restartNonce`.",
    )
    TOPOLOGY_HELD_BACK = (
        "TopologyHeldBack",
        "Stalled",
        "The new topology cannot continue from the existing state.",
        "Look at TopologyCompatible.",
    )
    TOPICS_UNFIT = (
        "TopicsUnfit",
        "Stalled",
        "Internal topics do not have the settings they need, and the operator must not change them.",
        "Look at TopicsReady.",
    )
    START_FAILED = (
        "StartFailed",
        "Stalled",
        "Pods are failing, and there is no earlier revision to roll back to.",
        "Read the message and the pods' logs, then fix the spec or the program.",
    )
    UPGRADE_FAILED = (
        "UpgradeFailed",
        "Stalled",
        "New pods failed or were not ready in time, and rollback is disabled or already done.",
        "Fix the spec, or change `restartNonce` to retry the failed revision.",
    )
    RENEWAL_FAILED = (
        "RenewalFailed",
        "Stalled",
        "A pod built by this version of the operator failed or was not ready in time. The other pods are left unchanged.",
        "Read the message and the pod's logs. If the program is not at fault, reinstall the previous version of the operator.",
    )
    GROUP_PROTOCOL_NOT_SERVED = (
        "GroupProtocolNotServed",
        "Stalled",
        (
            "The brokers do not serve the streams group protocol (KIP-1071), which `kafka.groupProtocol` asks "
            "for. The running application is left unchanged."
        ),
        (
            "Use Apache Kafka 4.2 or newer with the feature `streams.version=1`, and `streams` in "
            "`group.coordinator.rebalance.protocols` if that is set; or set `kafka.groupProtocol: classic`."
        ),
    )
    GROUP_SETTINGS_UNKNOWN = (
        "GroupSettingsUnknown",
        "Stalled",
        "The operator may not see the group's settings, so standbys and time-outs may differ from the manifest.",
        "Allow the application's user DESCRIBE_CONFIGS and ALTER_CONFIGS on its group.",
    )
    APPLICATION_ID_IN_USE = (
        "ApplicationIdInUse",
        "Stalled",
        "The application is not started, because its `applicationId` is already in use.",
        "Look at ApplicationIdUnique.",
    )
    REFUSED_BY_API_SERVER = (
        "RefusedByApiServer",
        "Stalled",
        (
            "The API server refused what the message names, because of a quota, an admission policy or webhook, "
            "or the operator's role. Everything that does not depend on it continues."
        ),
        "Change what refuses it. The operator retries automatically, and immediately when the spec changes.",
    )
    REFUSED_BY_KAFKA = (
        "RefusedByKafka",
        "Stalled",
        "The brokers refused what the message names.",
        ("Do what the message says, or grant the application's user the permissions it needs. The operator retries."),
    )
    ACTION_FAILED = (
        "ActionFailed",
        "Stalled",
        "An action has failed several times, for example because something did not answer.",
        "Check what the message names: the API server, a webhook, the brokers or a pod. The operator retries automatically.",
    )
    OPERATOR_ERROR = (
        "OperatorError",
        "Stalled",
        "A bug in the operator made it fail on this resource. Other applications are not affected.",
        "Please report the bug, with the operator's log.",
    )

    BROKERS_ANSWER = "BrokersAnswer", "BrokersReachable", "The brokers answer and accept the application's credentials."
    BROKERS_NOT_ASKED = "NotAsked", "BrokersReachable", "The operator has not asked the brokers yet.", _NO_ACTION
    UNREACHABLE = (
        "Unreachable",
        "BrokersReachable",
        "No broker answers. Running pods are left unchanged, and nothing new is started.",
        "Check `kafka.bootstrapServers`, the brokers, and network policies.",
    )
    AUTHENTICATION_FAILED = (
        "AuthenticationFailed",
        "BrokersReachable",
        "The brokers refuse the credentials.",
        "Correct the Secret that `kafka.auth` refers to.",
    )
    NOT_AUTHORIZED = (
        "NotAuthorized",
        "BrokersReachable",
        "The application's user lacks permission to describe or create what it needs.",
        "Grant the permissions that the message names, or set `internalTopics.management: VerifyOnly`.",
    )
    BAD_CONFIGURATION = (
        "BadConfiguration",
        "BrokersReachable",
        "The settings of the Kafka clients are invalid.",
        _SEE_MESSAGE,
    )
    SECRET_MISSING = (
        "SecretMissing",
        "BrokersReachable",
        "A Secret that `kafka` refers to, or one of its keys, is missing.",
        "Create the Secret or the key.",
    )
    TOKEN_ENDPOINT_NOT_ALLOWED = (
        "TokenEndpointNotAllowed",
        "BrokersReachable",
        "The operator is not allowed to fetch tokens from the endpoint in the Secret of `kafka.auth`.",
        "Ask the platform team to add it to `MILLRACE_OPERATOR_TOKEN_ENDPOINTS` (`operator.tokenEndpoints` in the chart).",
    )

    TOPICS_FIT = "TopicsFit", "TopicsReady", "All topics exist with the settings that the topology needs."
    TOPICS_UNKNOWN = (
        "TopicsUnknown",
        "TopicsReady",
        "The plan or the brokers' answer is not available yet.",
        "Look at BrokersReachable and Stalled.",
    )
    INPUT_TOPIC_MISSING = (
        "InputTopicMissing",
        "TopicsReady",
        "An input topic does not exist. The operator does not create input topics.",
        "Create it, or correct its name.",
    )
    PARTITIONS_DISAGREE = (
        "PartitionsDisagree",
        "TopicsReady",
        "Topics that are joined or merged have different numbers of partitions.",
        "Create them with the same number, or repartition one in the topology.",
    )
    INTERNAL_TOPIC_MISSING = (
        "InternalTopicMissing",
        "TopicsReady",
        "`internalTopics.management` is VerifyOnly and a topic does not exist.",
        "Create it as the message says (`millrace plan` lists all).",
    )
    TOPICS_BEING_CREATED = "TopicsBeingCreated", "TopicsReady", "The operator is creating internal topics.", _NO_ACTION
    TOO_FEW_BROKERS = (
        "TooFewBrokers",
        "TopicsReady",
        "There are fewer brokers than `internalTopics.replicationFactor`.",
        "Add brokers, or lower it.",
    )
    TOPIC_MISCONFIGURED = (
        "TopicMisconfigured",
        "TopicsReady",
        (
            "An internal topic has a different number of partitions or cleanup policy than the state needs, or "
            "cannot be written to."
        ),
        "Follow the message; a StreamsReset recreates the topics.",
    )
    DEAD_LETTER_TOPIC_MISSING = (
        "DeadLetterTopicMissing",
        "TopicsReady",
        (
            "The topic of `processing.deadLetterTopic` does not exist. Nothing is blocked, because brokers may "
            "create it on demand; but pods do not start without it."
        ),
        "Create it, or correct its name.",
    )
    TOPIC_DIFFERS = (
        "TopicDiffers",
        "TopicsReady",
        (
            "An internal topic works but differs from the spec in replication, min.insync.replicas or retention. "
            "Nothing is blocked."
        ),
        "Alter the topic as the message says.",
    )
    CHANGELOG_LOST = (
        "ChangelogLost",
        "TopicsReady",
        (
            "A changelog topic that the operator knew is gone, or was recreated. The operator does not recreate "
            "it, because state would be lost silently."
        ),
        ("Reset the application with a StreamsReset, or accept the loss with the annotation that the message shows."),
    )
    REPARTITION_TOPIC_LOST = (
        "RepartitionTopicLost",
        "TopicsReady",
        "A repartition topic that the operator knew is gone, or was recreated: records in transit were lost.",
        ("Reset the application with a StreamsReset, or accept the loss with the annotation that the message shows."),
    )

    COMPATIBLE = "Compatible", "TopologyCompatible", "The topology can continue from the existing state."
    PLAN_PENDING = (
        "PlanPending",
        "TopologyCompatible",
        "The plan of the new topology is not known yet.",
        "Wait, or look at Stalled.",
    )
    NEEDS_RESET = (
        "NeedsReset",
        "TopologyCompatible",
        "The new topology would leave state behind or misread it. The running application is left unchanged.",
        "Undo the change, reset the application with a StreamsReset, or set `upgrade.topologyPolicy: Warn`.",
    )
    NEEDS_RESET_IGNORED = (
        "NeedsResetIgnored",
        "TopologyCompatible",
        "The new topology leaves state behind or misreads it, but runs because `upgrade.topologyPolicy` is Warn.",
        "Check the results.",
    )

    TOPOLOGY_AGREES = (
        "TopologyAgrees",
        "TopologyShared",
        "Every pod takes the tasks that the group's leader assigns to it.",
    )
    TOPOLOGIES_DIFFER = (
        "TopologiesDiffer",
        "TopologyShared",
        (
            "The members of the group run different topologies: a pod was assigned tasks that its own topology does not have, "
            "and nobody processes their input. Until a roll to a new version has ended, this is normal."
        ),
        (
            "If this persists: make sure that no other program uses the application id, and that the topology "
            "does not depend on what differs between pods."
        ),
    )
    TOPOLOGY_UNKNOWN = "TopologyUnknown", "TopologyShared", "No pod has reported its tasks.", "Look at Ready."

    RESTORED = "Restored", "StateRestored", "No task is restoring state."
    RESTORING = "Restoring", "StateRestored", "Tasks are restoring their state from changelogs.", _NO_ACTION
    RESTORATION_UNKNOWN = "RestorationUnknown", "StateRestored", "No pod has reported its tasks.", "Look at Ready."

    COPIES_CAUGHT_UP = (
        "CopiesCaughtUp",
        "StateReplicated",
        "Every task with state has a copy on another pod that could take over.",
    )
    COPIES_BEHIND = (
        "CopiesBehind",
        "StateReplicated",
        (
            "Tasks have no copy on another pod that could take over at once. Until they have one, pods are not "
            "removed, replaced or evicted, for at most `standby.catchUpTimeout`."
        ),
        _NO_ACTION,
    )
    COPIES_UNKNOWN = "CopiesUnknown", "StateReplicated", "No pod has reported its tasks.", "Look at Ready."
    NO_COPIES_WANTED = (
        "NoCopiesWanted",
        "StateReplicated",
        "There are no standbys, or there is no second pod to keep them.",
    )

    SCALING_POSSIBLE = "ScalingPossible", "ScalingAllowed", "The number of replicas can be changed."
    NOT_RUNNING = "NotRunning", "ScalingAllowed", "The application is not running.", "Look at Ready."
    TASKS_MOVE = "TasksMove", "ScalingAllowed", "The group is rebalancing.", _NO_ACTION
    STATE_IS_RESTORED = "StateIsRestored", "ScalingAllowed", "State is being restored.", _NO_ACTION
    TASKS_WARM_UP = (
        "TasksWarmUp",
        "ScalingAllowed",
        "Tasks are about to move to pods that have no part in their load yet, as soon as their state has been copied there.",
        _NO_ACTION,
    )
    UPGRADE_IN_PROGRESS = "UpgradeInProgress", "ScalingAllowed", "Pods are being replaced.", _NO_ACTION
    SCALING_IN_PROGRESS = (
        "ScalingInProgress",
        "ScalingAllowed",
        "The number of replicas is already being changed.",
        _NO_ACTION,
    )
    BROKERS_AWAY = "BrokersAway", "ScalingAllowed", "The brokers do not answer.", "Look at BrokersReachable."

    VOLUMES_FIT = "VolumesFit", "StorageHealthy", "Volumes have the requested size and enough free space."
    VOLUME_NEARLY_FULL = (
        "VolumeNearlyFull",
        "StorageHealthy",
        "A volume is more than 85 % full.",
        "Raise `storage.size`, or add replicas so that each holds fewer tasks.",
    )
    EXPANSION_UNSUPPORTED = (
        "ExpansionUnsupported",
        "StorageHealthy",
        "`storage.size` has grown, but the storage class does not allow volumes to grow.",
        "Set `allowVolumeExpansion: true` on the class if its driver can, or set the size back.",
    )
    SHRINKING_REFUSED = (
        "ShrinkingRefused",
        "StorageHealthy",
        "`storage.size` is less than the volumes have, and volumes cannot shrink.",
        "Set the size back.",
    )
    VOLUME_PENDING = (
        "VolumePending",
        "StorageHealthy",
        "A volume has not been provided or enlarged yet.",
        "If this persists: check the storage class and the events of the claim.",
    )

    NOT_ROLLED_BACK = "NotRolledBack", "RolledBack", "The current revision has not been rolled back."
    POD_CRASHED = (
        "PodCrashed",
        "RolledBack",
        "A pod of the new revision crashed, so the previous revision was restored.",
        "Fix the program and change the spec; a new `restartNonce` is enough to retry.",
    )
    IMAGE_UNAVAILABLE = (
        "ImageUnavailable",
        "RolledBack",
        "The new image could not be pulled, so the previous revision was restored.",
        "Correct the image, or make it available and change `restartNonce`.",
    )
    READY_TIMEOUT = (
        "ReadyTimeout",
        "RolledBack",
        "A pod of the new revision was not ready within `upgrade.gate.readyTimeout`, so the previous revision was restored.",
        "Find out why, or allow more time and change `restartNonce` to retry.",
    )
    UPGRADE_NOT_BEGUN = (
        "UpgradeNotBegun",
        "RolledBack",
        "The new revision failed before any pod was replaced. The previous one keeps running.",
        "Look at Stalled.",
    )

    TEMPLATE_IN_USE = "TemplateInUse", "PodsCurrent", "All pods match what this version of the operator builds."
    TEMPLATE_OUTDATED = (
        "TemplateOutdated",
        "PodsCurrent",
        (
            "Another version of the operator has created some pods, and this one builds them differently. They keep running "
            "until it is the application's turn: the operator replaces pods of a few applications at a time."
        ),
        "No action needed. To have them replaced now, change `restartNonce`.",
    )
    RENEWAL_UNDER_WAY = (
        "RenewalUnderWay",
        "PodsCurrent",
        "It is the application's turn: pods that another version of the operator has created are being replaced.",
        "Look at Reconciling and Stalled.",
    )

    NOT_PAUSED = "NotPaused", "ReconciliationPaused", "The operator is not paused."
    PAUSED_BY_ANNOTATION = (
        "PausedByAnnotation",
        "ReconciliationPaused",
        "The annotation `streams.millrace.dev/pause` keeps the operator from changing anything but the status.",
        "Remove the annotation.",
    )

    UNIQUE = "Unique", "ApplicationIdUnique", "No other application has a prior claim to this application id."
    MEMBERS_UNKNOWN = (
        "MembersUnknown",
        "ApplicationIdUnique",
        "The members of the consumer group are not known, because the brokers do not answer.",
        "Look at BrokersReachable.",
    )
    DUPLICATE_APPLICATION_ID = (
        "DuplicateApplicationId",
        "ApplicationIdUnique",
        (
            "Another StreamsApp has the same `applicationId` on the same brokers, and is running or older. This "
            "one is not started; if it is already running, it keeps running."
        ),
        "Delete one of them, or let one take over with `handover`.",
    )
    HANDED_OVER = (
        "HandedOver",
        "ApplicationIdUnique",
        "Another StreamsApp is taking over the application id: its `handover` names this one, which is not started again.",
        (
            "Delete it with the policy `Retain` or `Purge`; its topics and group then belong to the other one. Or"
            " remove that `handover`."
        ),
    )
    GROUP_IN_USE = (
        "GroupInUse",
        "ApplicationIdUnique",
        "The consumer group has members that are not pods of this StreamsApp, so it is not started.",
        ("Set `handover` to take over from them, delete the StreamsApp if it uses their id by mistake, or stop them."),
    )
    MEMBERS_LEFT = (
        "MembersLeft",
        "ApplicationIdUnique",
        (
            "Members that are not pods of this StreamsApp have left the group. They may only be restarting, so it"
            " starts when none has been seen for five minutes."
        ),
        "Wait; or change `restartNonce` if they are gone for good.",
    )
    HANDOVER_PENDING = (
        "HandoverPending",
        "ApplicationIdUnique",
        "The application to take over from is still running, or its members are still in the group.",
        "Stop it as the message says.",
    )

    @property
    def passes(self) -> bool:
        """Whether things take their normal course, although all is not well yet."""
        return self.remedy == _NO_ACTION

    @classmethod
    def named(cls, word: str) -> Self | None:
        """Return the reason of this name; None if there is none, as after a change of the operator's version."""
        return next((member for member in cls if member == word), None)
