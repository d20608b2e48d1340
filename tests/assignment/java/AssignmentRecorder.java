package org.apache.kafka.streams.processor.internals;

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.ApplicationState;
import org.apache.kafka.streams.processor.assignment.AssignmentConfigs;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsAssignment;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsState;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.assignment.TaskAssignmentUtils;
import org.apache.kafka.streams.processor.assignment.TaskInfo;
import org.apache.kafka.streams.processor.assignment.TaskTopicPartition;
import org.apache.kafka.streams.processor.assignment.assignors.StickyTaskAssignor;
import org.apache.kafka.streams.processor.internals.TopologyMetadata.Subtopology;
import org.apache.kafka.streams.processor.internals.assignment.ClientState;
import org.apache.kafka.streams.processor.internals.assignment.DefaultKafkaStreamsState;
import org.apache.kafka.streams.processor.internals.assignment.FallbackPriorTaskAssignor;
import org.apache.kafka.streams.processor.internals.assignment.HighAvailabilityTaskAssignor;
import org.apache.kafka.streams.processor.internals.assignment.LegacyTaskAssignor;
import org.apache.kafka.streams.processor.internals.assignment.RackAwareTaskAssignor;

/**
 * Writes random groups and what Kafka Streams decides about them, one JSON object per line.
 *
 * Arguments: the first seed, the number of cases.
 *
 * The maps and sets are built as StreamsPartitionAssignor builds them, since some decisions depend on the order in which hash
 * tables iterate. In one place that order is by the address of objects, and so by chance: StickyTaskAssignor's set of TaskInfo,
 * which has no hash code of its own. Here it has one, so that the set iterates in the order of task ids.
 */
public final class AssignmentRecorder {
    private static final long UNKNOWN = -3;
    private static final long LATEST = -2;
    private static final int STATELESS = 0;
    private static final int LOGGED = 1;
    private static final int FROM_SOURCE = 2;
    private static final int UNLOGGED = 3;
    private static final Node[] NODES = new Node[5];

    static {
        for (int n = 0; n < 4; n++) {
            NODES[n] = new Node(n, "localhost", 9092, "r" + n);
        }
        NODES[4] = new Node(4, "localhost", 9092, null);
    }

    private final Random random;
    private final List<int[]> subtopologies = new ArrayList<>();
    private final Map<TaskId, Set<TopicPartition>> inputs;
    private final Map<TaskId, Set<TopicPartition>> changelogs = new HashMap<>();
    private final Map<Subtopology, Set<TaskId>> tasksOfSubtopology = new HashMap<>();
    private final Set<TaskId> stateful = new HashSet<>();
    private final Map<TopicPartition, List<Node>> replicas = new HashMap<>();
    private final Map<ProcessId, Map<String, Optional<String>>> racks = new HashMap<>();
    private final TreeMap<String, ProcessId> consumers = new TreeMap<>();
    private final Map<ProcessId, ClientState> clients = new HashMap<>();
    private final Map<ProcessId, Map<String, String>> tags = new HashMap<>();
    private final Map<String, Set<TaskId>> owned = new TreeMap<>();
    private final Map<String, Map<TaskId, Long>> sums = new TreeMap<>();
    private final Map<TaskId, Long> ends = new TreeMap<>();
    private final Cluster cluster;
    private final AssignmentConfigs config;
    private final String assignor;
    private final boolean lagsKnown;

    private AssignmentRecorder(final long seed, final List<UUID> ids) {
        random = new Random(seed * 0x9E3779B97F4A7C15L);
        assignor = pick("ha", "ha", "ha", "ha", "ha", "sticky", "sticky", "sticky", "fallback", "helpers");
        lagsKnown = !assignor.equals("fallback") && chance(0.95);
        final Map<Subtopology, Set<String>> inputTopics = new HashMap<>();
        final Map<Subtopology, Set<String>> changelogTopics = new HashMap<>();
        final String strategy = pick("none", "none", "min_traffic", "balance_subtopology");
        final List<PartitionInfo> infos = topics(inputTopics, changelogTopics, !strategy.equals("none"));
        cluster = new Cluster("c", Arrays.asList(NODES), infos, Collections.emptySet(), Collections.emptySet());
        final Map<TaskId, Set<TopicPartition>> logged = new HashMap<>();
        inputs = new PartitionGrouper().partitionGroups(inputTopics, changelogTopics, logged, cluster);
        inputs.keySet().forEach(task -> tasksOfSubtopology
            .computeIfAbsent(new Subtopology(task.subtopology(), null), s -> new HashSet<>()).add(task));
        for (final Subtopology subtopology : inputTopics.keySet()) {
            for (final TaskId task : tasksOfSubtopology.get(subtopology)) {
                if (!logged.get(task).isEmpty()) {
                    changelogs.put(task, logged.get(task));
                }
            }
        }
        stateful.addAll(changelogs.keySet());
        final List<String> aware = new ArrayList<>();
        final List<String> given = new ArrayList<>();
        if (chance(0.35)) {
            given.addAll(Arrays.asList("zone", "cluster").subList(0, 1 + random.nextInt(2)));
            aware.addAll(chance(0.8) ? given : given.subList(0, 1));
        }
        members(ids, given, !strategy.equals("none"));
        state();
        final boolean costs = chance(0.7);
        config = new AssignmentConfigs(
            pick(0L, 100L, 10_000L, 10_000L, Long.MAX_VALUE),
            1 + random.nextInt(5),
            pick(0, 0, 1, 1, 2),
            600_000,
            aware,
            costs ? OptionalInt.of(pick(0, 1, 10, 20)) : OptionalInt.empty(),
            costs ? OptionalInt.of(pick(0, 1, 5, 10)) : OptionalInt.empty(),
            strategy);
    }

    private List<PartitionInfo> topics(
        final Map<Subtopology, Set<String>> inputTopics, final Map<Subtopology, Set<String>> changelogTopics, final boolean racked) {
        final List<PartitionInfo> infos = new ArrayList<>();
        final int count = 1 + random.nextInt(6);
        final boolean unracked = chance(0.05);
        for (int id = 0; id < count; id++) {
            final int partitions = 1 + random.nextInt(chance(0.7) ? 6 : 12);
            final int others = chance(0.3) ? 1 + random.nextInt(partitions) : 0;
            final int kind = pick(STATELESS, LOGGED, LOGGED, LOGGED, FROM_SOURCE, UNLOGGED);
            subtopologies.add(new int[] {partitions, others, kind});
            final Set<String> read = new HashSet<>();
            read.add("a" + id);
            infos.addAll(topic("a" + id, partitions, racked, unracked));
            if (others > 0) {
                read.add("b" + id);
                infos.addAll(topic("b" + id, others, racked, unracked));
            }
            final Set<String> logs = new HashSet<>();
            if (kind == LOGGED) {
                logs.add("log" + id);
                topic("log" + id, partitions, racked, unracked);
            } else if (kind == FROM_SOURCE) {
                logs.add("a" + id);
            }
            inputTopics.put(new Subtopology(id, null), read);
            changelogTopics.put(new Subtopology(id, null), logs);
        }
        return infos;
    }

    private List<PartitionInfo> topic(final String name, final int partitions, final boolean racked, final boolean unracked) {
        final List<PartitionInfo> infos = new ArrayList<>();
        for (int number = 0; number < partitions; number++) {
            final Set<Node> nodes = new TreeSet<>((x, y) -> x.id() - y.id());
            if (!racked || (unracked && chance(0.2))) {
                nodes.add(NODES[4]);
            } else {
                for (int n = 0; n < 1 + random.nextInt(2); n++) {
                    nodes.add(NODES[random.nextInt(4)]);
                }
            }
            replicas.put(new TopicPartition(name, number), new ArrayList<>(nodes));
            final Node[] array = nodes.toArray(new Node[0]);
            infos.add(new PartitionInfo(name, number, array[0], array, array));
        }
        return infos;
    }

    private void members(final List<UUID> ids, final List<String> tagKeys, final boolean racked) {
        final List<UUID> chosen = new ArrayList<>(ids);
        Collections.shuffle(chosen, random);
        final int count = 1 + random.nextInt(chance(0.6) ? 5 : 12);
        final int capacity = random.nextInt(5);
        final boolean unracked = chance(0.05);
        for (int n = 0; n < count; n++) {
            final ProcessId id = new ProcessId(chosen.get(n));
            final String rack = "r" + random.nextInt(4);
            final Map<String, String> own = new HashMap<>();
            for (final String key : tagKeys) {
                if (chance(0.95)) {
                    own.put(key, key.charAt(0) + "" + random.nextInt(key.equals("zone") ? 3 : 2));
                }
            }
            tags.put(id, own);
            racks.put(id, new HashMap<>());
            final int threads = chance(0.5) ? 1 + capacity : 1 + random.nextInt(5);
            for (int thread = 0; thread < threads; thread++) {
                final String consumer = Integer.toString(random.nextInt(36 * 36 * 36), 36) + "-" + n + "-" + thread;
                consumers.put(consumer, id);
                racks.get(id).put(consumer, racked && !(unracked && chance(0.2)) ? Optional.of(rack) : Optional.empty());
                owned.put(consumer, new TreeSet<>());
                sums.put(consumer, new TreeMap<>());
            }
        }
    }

    /** Lets some of the clients own tasks and have state. */
    private void state() {
        final List<String> all = new ArrayList<>(consumers.keySet());
        Collections.shuffle(all, random);
        final List<String> old = all.subList(0, chance(0.3) ? all.size() : random.nextInt(all.size() + 1));
        final double copies = pick(0.0, 0.1, 0.3);
        final double running = pick(0.5, 0.95, 1.0);
        final long scale = pick(50L, 20_000L, 1_000_000L);
        for (final TaskId task : new TreeSet<>(inputs.keySet())) {
            final boolean logged = stateful.contains(task);
            if (logged) {
                ends.put(task, chance(0.1) ? 0 : (long) random.nextInt((int) scale));
            }
            if (old.isEmpty()) {
                continue;
            }
            if (chance(0.9)) {
                final String owner = old.get(random.nextInt(old.size()));
                owned.get(owner).add(task);
                if (logged) {
                    sums.get(owner).put(task, chance(running) ? LATEST : offset(ends.get(task)));
                }
            }
            if (logged) {
                for (final ProcessId client : new HashSet<>(consumers.values())) {
                    final List<String> threads = old.stream().filter(c -> consumers.get(c).equals(client)).sorted().toList();
                    if (!threads.isEmpty() && chance(copies) && threads.stream().noneMatch(c -> sums.get(c).containsKey(task))) {
                        final String holder = threads.get(random.nextInt(threads.size()));
                        sums.get(holder).put(task, chance(0.02) ? LATEST : offset(ends.get(task)));
                    }
                }
            }
        }
    }

    private long offset(final long end) {
        final double choice = random.nextDouble();
        if (choice < 0.05) {
            return UNKNOWN;
        }
        if (choice < 0.1) {
            return end + 1 + random.nextInt(10);
        }
        return choice < 0.5 ? end - Math.min(end, random.nextInt(100)) : (long) (random.nextDouble() * end);
    }

    private void fillClients() {
        final Map<String, ProcessId> subscriptions = new HashMap<>(16);
        consumers.forEach(subscriptions::put);
        final Map<ProcessId, ClientState> metadata = new HashMap<>();
        subscriptions.forEach((consumer, id) -> {
            if (!metadata.containsKey(id)) {
                metadata.put(id, new ClientState(id, tags.get(id)));
            }
            final ClientState client = metadata.get(id);
            client.incrementCapacity();
            client.addOwnedPartitions(owned.get(consumer).stream().flatMap(t -> inputs.get(t).stream()).collect(Collectors.toSet()), consumer);
            client.addPreviousTasksAndOffsetSums(consumer, sums.get(consumer));
        });
        final Map<TopicPartition, TaskId> taskOf = new HashMap<>();
        inputs.forEach((task, partitions) -> partitions.forEach(partition -> taskOf.put(partition, task)));
        final Map<TaskId, Long> known = new HashMap<>();
        stateful.forEach(task -> known.put(task, lagsKnown ? ends.get(task) : UNKNOWN));
        metadata.forEach((id, client) -> {
            client.initializePrevTasks(taskOf, false);
            client.computeTaskLags(id, known);
            clients.put(id, client);
        });
    }

    private String record(final long number) {
        final Json json = new Json();
        json.open().key("case").number(number).key("assignor").text(assignor).key("subtopologies").raw(
            subtopologies.stream().map(Arrays::toString).collect(Collectors.joining(",", "[", "]")));
        writeInput(json);
        fillClients();
        final ApplicationState application = new Application();
        final Map<ProcessId, KafkaStreamsAssignment> identity = new TreeMap<>();
        TaskAssignmentUtils.identityAssignment(application).forEach(identity::put);
        json.key("previous").raw(decision(identity.values())).key("lags").open();
        clients.forEach((id, client) -> {
            json.key(id.toString()).open();
            new TreeMap<>(client.taskLagTotals()).forEach((task, lag) -> json.key(task.toString()).number(lag));
            json.close();
        });
        json.close();
        boolean probing = false;
        if (assignor.equals("sticky")) {
            take(new StickyTaskAssignor().assign(application).assignment());
        } else if (assignor.equals("helpers")) {
            take(helped(application));
        } else {
            final LegacyTaskAssignor legacy = assignor.equals("ha") && lagsKnown
                ? new HighAvailabilityTaskAssignor() : new FallbackPriorTaskAssignor();
            final RackAwareTaskAssignor rackAware = new RackAwareTaskAssignor(
                cluster, inputs, changelogs, tasksOfSubtopology, racks, new Topics(), config, Time.SYSTEM);
            probing = legacy.assign(clients, inputs.keySet(), stateful, rackAware, config);
        }
        json.key("probing").raw(Boolean.toString(probing)).key("decision").open();
        clients.forEach((id, client) -> {
            json.key(id.toString()).raw("[" + tasks(client.activeTasks()) + "," + tasks(client.standbyTasks()) + "]");
        });
        json.close().key("threads").open();
        clients.forEach((id, client) -> {
            final SortedSet<String> threads = new TreeSet<>(racks.get(id).keySet());
            final Map<String, Integer> load = new HashMap<>();
            final var active = StreamsPartitionAssignor.assignTasksToThreads(client.statefulActiveTasks(), true, threads, client, load);
            final var standby = StreamsPartitionAssignor.assignTasksToThreads(client.standbyTasks(), true, threads, client, load);
            final var stateless = StreamsPartitionAssignor.assignTasksToThreads(client.statelessActiveTasks(), false, threads, client, load);
            for (final String thread : threads) {
                active.get(thread).addAll(stateless.get(thread));
                json.key(thread).raw("[" + tasks(active.get(thread)) + "," + tasks(standby.get(thread)) + "]");
            }
        });
        return json.close().close().toString();
    }

    private void take(final Collection<KafkaStreamsAssignment> result) {
        result.forEach(assignment -> {
            final ClientState client = clients.get(assignment.processId());
            client.assignActiveTasks(of(assignment, KafkaStreamsAssignment.AssignedTask.Type.ACTIVE));
            client.assignStandbyTasks(of(assignment, KafkaStreamsAssignment.AssignedTask.Type.STANDBY));
        });
    }

    /** Deals out active tasks like cards, and leaves the rest to the helpers for custom assignors. */
    private Collection<KafkaStreamsAssignment> helped(final ApplicationState application) {
        final Map<ProcessId, KafkaStreamsAssignment> assignments = new HashMap<>();
        final List<ProcessId> ids = new ArrayList<>(new TreeSet<>(clients.keySet()));
        int number = 0;
        for (final TaskId task : new TreeSet<>(inputs.keySet())) {
            final ProcessId id = ids.get(number++ % ids.size());
            assignments.computeIfAbsent(id, i -> KafkaStreamsAssignment.of(i, new HashSet<>()))
                .assignTask(new KafkaStreamsAssignment.AssignedTask(task, KafkaStreamsAssignment.AssignedTask.Type.ACTIVE));
        }
        final var parameters = TaskAssignmentUtils.RackAwareOptimizationParams.of(application);
        TaskAssignmentUtils.optimizeRackAwareActiveTasks(parameters.forStatefulTasks(), assignments);
        TaskAssignmentUtils.optimizeRackAwareActiveTasks(
            parameters.forStatelessTasks().withTrafficCostOverride(7).withNonOverlapCostOverride(2), assignments);
        if (config.numStandbyReplicas() > 0) {
            TaskAssignmentUtils.defaultStandbyTaskAssignment(application, assignments);
        }
        TaskAssignmentUtils.optimizeRackAwareStandbyTasks(parameters, assignments);
        return assignments.values();
    }

    private static Set<TaskId> of(final KafkaStreamsAssignment assignment, final KafkaStreamsAssignment.AssignedTask.Type type) {
        return assignment.tasks().values().stream().filter(t -> t.type() == type)
            .map(KafkaStreamsAssignment.AssignedTask::id).collect(Collectors.toSet());
    }

    private static String decision(final Collection<KafkaStreamsAssignment> assignments) {
        final Json json = new Json().open();
        assignments.forEach(a -> json.key(a.processId().toString()).raw(
            "[" + tasks(of(a, KafkaStreamsAssignment.AssignedTask.Type.ACTIVE)) + ","
                + tasks(of(a, KafkaStreamsAssignment.AssignedTask.Type.STANDBY)) + "]"));
        return json.close().toString();
    }

    private void writeInput(final Json json) {
        json.key("config").open()
            .key("acceptable_recovery_lag").number(config.acceptableRecoveryLag())
            .key("max_warmup_replicas").number(config.maxWarmupReplicas())
            .key("num_standby_replicas").number(config.numStandbyReplicas())
            .key("rack_aware_tags").raw(config.rackAwareAssignmentTags().stream().map(t -> '"' + t + '"').toList().toString())
            .key("rack_aware_strategy").text(config.rackAwareAssignmentStrategy());
        config.rackAwareTrafficCost().ifPresent(cost -> json.key("rack_aware_traffic_cost").number(cost));
        config.rackAwareNonOverlapCost().ifPresent(cost -> json.key("rack_aware_non_overlap_cost").number(cost));
        json.close().key("tags").open();
        new TreeMap<>(tags).forEach((id, own) -> {
            json.key(id.toString()).open();
            new TreeMap<>(own).forEach((key, value) -> json.key(key).text(value));
            json.close();
        });
        json.close().key("members").open();
        consumers.forEach((consumer, id) -> {
            json.key(consumer).open().key("client").text(id.toString());
            racks.get(id).get(consumer).ifPresent(rack -> json.key("rack").text(rack));
            json.key("owned").raw(tasks(owned.get(consumer))).key("sums").open();
            sums.get(consumer).forEach((task, sum) -> json.key(task.toString()).number(sum));
            json.close().close();
        });
        json.close();
        if (lagsKnown) {
            json.key("ends").open();
            ends.forEach((task, end) -> json.key(task.toString()).number(end));
            json.close();
        }
        if (!config.rackAwareAssignmentStrategy().equals("none")) {
            json.key("racks").open();
            final TreeMap<String, List<Node>> sorted = new TreeMap<>();
            replicas.forEach((partition, nodes) -> sorted.put(partition.topic() + "-" + partition.partition(), nodes));
            sorted.forEach((partition, nodes) -> json.key(partition).text(
                nodes.stream().filter(Node::hasRack).map(Node::rack).collect(Collectors.joining(","))));
            json.close();
        }
    }

    private static String tasks(final Collection<TaskId> tasks) {
        return new TreeSet<>(tasks).stream().map(TaskId::toString).collect(Collectors.joining(" ", "\"", "\""));
    }

    private boolean chance(final double probability) {
        return random.nextDouble() < probability;
    }

    @SafeVarargs
    private <T> T pick(final T... values) {
        return values[random.nextInt(values.length)];
    }

    /** What an assignor of KIP-924 sees. */
    private final class Application implements ApplicationState {
        private final Map<TaskId, TaskInfo> tasks;
        private final Map<ProcessId, KafkaStreamsState> states = new HashMap<>();

        Application() {
            final List<TaskId> sorted = new ArrayList<>(new TreeSet<>(stateful));
            tasks = inputs.keySet().stream().collect(Collectors.toMap(task -> task, task -> new Info(task, sorted.indexOf(task))));
            clients.forEach((id, client) -> states.put(id, new DefaultKafkaStreamsState(
                id,
                client.capacity(),
                client.clientTags(),
                client.previousActiveTasks(),
                client.previousStandbyTasks(),
                client.taskIdsByPreviousConsumer(),
                Optional.empty(),
                Optional.of(client.taskLagTotals()),
                rackOf(id))));
        }

        /** Of a process whose threads do not all have a rack, none is known; Kafka Streams takes that of any thread. */
        private Optional<String> rackOf(final ProcessId id) {
            final Collection<Optional<String>> all = racks.get(id).values();
            return all.stream().allMatch(Optional::isPresent) ? all.iterator().next() : Optional.empty();
        }

        @Override
        public Map<ProcessId, KafkaStreamsState> kafkaStreamsStates(final boolean computeTaskLags) {
            return states;
        }

        @Override
        public AssignmentConfigs assignmentConfigs() {
            return config;
        }

        @Override
        public Map<TaskId, TaskInfo> allTasks() {
            return tasks;
        }
    }

    private final class Info implements TaskInfo {
        private final TaskId task;
        private final int position;

        Info(final TaskId task, final int position) {
            this.task = task;
            this.position = position;
        }

        @Override
        public TaskId id() {
            return task;
        }

        @Override
        public boolean isStateful() {
            return subtopologies.get(task.subtopology())[2] != STATELESS;
        }

        @Override
        public Set<String> stateStoreNames() {
            return isStateful() ? Set.of("store") : Set.of();
        }

        @Override
        public Set<TaskTopicPartition> topicPartitions() {
            final Set<TaskTopicPartition> all = new HashSet<>();
            final Set<TopicPartition> logged = changelogs.getOrDefault(task, Set.of());
            inputs.get(task).forEach(partition -> all.add(new Partition(partition, true, logged.contains(partition))));
            logged.stream().filter(partition -> !inputs.get(task).contains(partition))
                .forEach(partition -> all.add(new Partition(partition, false, true)));
            return all;
        }

        @Override
        public int hashCode() {
            return position;
        }

        @Override
        public boolean equals(final Object other) {
            return other instanceof Info info && info.task.equals(task);
        }
    }

    private final class Partition implements TaskTopicPartition {
        private final TopicPartition partition;
        private final boolean source;
        private final boolean changelog;

        Partition(final TopicPartition partition, final boolean source, final boolean changelog) {
            this.partition = partition;
            this.source = source;
            this.changelog = changelog;
        }

        @Override
        public TopicPartition topicPartition() {
            return partition;
        }

        @Override
        public boolean isSource() {
            return source;
        }

        @Override
        public boolean isChangelog() {
            return changelog;
        }

        @Override
        public Optional<Set<String>> rackIds() {
            return Optional.of(replicas.get(partition).stream().filter(Node::hasRack).map(Node::rack).collect(Collectors.toSet()));
        }
    }

    /** Answers where the replicas of changelog topics are. */
    private final class Topics extends InternalTopicManager {
        Topics() {
            super(Time.SYSTEM, (Admin) null, new StreamsConfig(Map.of("application.id", "a", "bootstrap.servers", "localhost:9092")));
        }

        @Override
        public Map<String, List<TopicPartitionInfo>> getTopicPartitionInfo(final Set<String> topics) {
            final Map<String, List<TopicPartitionInfo>> found = new HashMap<>();
            replicas.forEach((partition, nodes) -> {
                if (topics.contains(partition.topic())) {
                    found.computeIfAbsent(partition.topic(), t -> new ArrayList<>())
                        .add(new TopicPartitionInfo(partition.partition(), nodes.get(0), nodes, nodes));
                }
            });
            return found;
        }
    }

    /** Writes JSON; texts need no escapes. */
    private static final class Json {
        private final StringBuilder text = new StringBuilder();

        private Json separate() {
            if (text.length() > 0 && "}]\"0123456789e".indexOf(text.charAt(text.length() - 1)) >= 0) {
                text.append(',');
            }
            return this;
        }

        Json open() {
            text.append('{');
            return this;
        }

        Json close() {
            text.append('}');
            return this;
        }

        Json key(final String key) {
            separate();
            text.append('"').append(key).append("\":");
            return this;
        }

        Json text(final String value) {
            text.append('"').append(value).append('"');
            return this;
        }

        Json number(final long value) {
            text.append(value);
            return this;
        }

        Json raw(final String value) {
            text.append(value);
            return this;
        }

        @Override
        public String toString() {
            return text.toString();
        }
    }

    public static void main(final String[] arguments) {
        final long seed = Long.parseLong(arguments[0]);
        final Random random = new Random(seed);
        final List<UUID> ids = new ArrayList<>();
        for (int n = 0; n < 60; n++) {
            ids.add(new UUID(random.nextLong(), random.nextLong()));
        }
        final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (long number = seed; number < seed + Long.parseLong(arguments[1]); number++) {
            out.println(new AssignmentRecorder(number, ids).record(number));
        }
        out.flush();
    }
}
