import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Collection;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TaskMetadata;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.internals.DefaultKafkaClientSupplier;
import org.apache.kafka.streams.processor.internals.StreamsPartitionAssignor;
import org.apache.kafka.streams.processor.internals.assignment.StreamsAssignmentProtocolVersions;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Counts purchases per customer, in total and per window of ten seconds, joins the totals with the customers' cities, and counts the
 * customers of each city, until standard input ends.
 *
 * <p>Arguments are settings (name=value); {@code topics} is the prefix of the topics read and written. Prints the topology, each state
 * it enters and each restoration, and, whenever they change, its tasks, the group's hosts and the positions of its standbys. With the setting {@code future} its subscriptions begin with version 12, as those
 * of a later release may.
 */
public final class Purchases {
    private static final Duration WINDOW = Duration.ofSeconds(10);

    private static void define(StreamsBuilder builder, String topics) {
        Serde<String> string = Serdes.String();
        KGroupedStream<String, String> purchases = builder
            .stream(topics + "-purchases", Consumed.with(string, string))
            .selectKey((number, customer) -> customer)
            .groupByKey(Grouped.with("purchases", string, string));
        KTable<String, Long> counts = purchases.count(
            Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"));
        counts.toStream().to(topics + "-counts", Produced.with(string, Serdes.Long()));
        purchases
            .windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, Duration.ofDays(1)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("windowed-counts"))
            .toStream()
            .to(
                topics + "-windowed",
                Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, WINDOW.toMillis()), Serdes.Long()));
        KTable<String, String> customers = builder.table(
            topics + "-customers",
            Consumed.with(string, string),
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("customers"));
        counts
            .join(
                customers,
                (count, city) -> city + ":" + count,
                Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("joined")
                    .withKeySerde(string)
                    .withValueSerde(string))
            .toStream()
            .to(topics + "-joined", Produced.with(string, string));
        customers
            .groupBy((customer, city) -> KeyValue.pair(city, customer), Grouped.with("cities", string, string))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("cities"))
            .toStream()
            .to(topics + "-cities", Produced.with(string, Serdes.Long()));
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String argument : arguments) {
            int split = argument.indexOf('=');
            settings.put(argument.substring(0, split), argument.substring(split + 1));
        }
        StreamsBuilder builder = new StreamsBuilder();
        define(builder, (String) settings.remove("topics"));
        Topology topology = builder.build(settings);
        System.out.println("TOPOLOGY " + topology.describe().toString().replace("\n", "|"));
        KafkaStreams streams = settings.remove("future") == null
            ? new KafkaStreams(topology, settings)
            : new KafkaStreams(topology, settings, new FutureClients());
        streams.setStateListener((now, before) -> System.out.println(now));
        streams.setGlobalStateRestoreListener(new Restorations());
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        Thread reporter = new Thread(() -> report(streams));
        reporter.setDaemon(true);
        reporter.start();
        while (System.in.read() >= 0) {
            // Whoever started this program holds its standard input open for as long as it is to run.
        }
        boolean closed = streams.close(
            CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP)
                .withTimeout(Duration.ofSeconds(60)));
        System.out.println(closed ? "CLOSED" : "NOT CLOSED IN TIME");
        System.exit(closed ? 0 : 1);
    }

    private static void report(KafkaStreams streams) {
        String tasks = "";
        String hosts = "";
        String positions = "";
        while (true) {
            try {
                Thread.sleep(200);
                tasks = changed(tasks, "TASKS " + tasks(streams));
                hosts = changed(hosts, "HOSTS " + hosts(streams));
                positions = changed(positions, "POSITIONS " + positions(streams));
            } catch (InterruptedException ended) {
                return;
            } catch (RuntimeException unavailable) {
                // Not running, or in the middle of a rebalance: the next round will tell.
            }
        }
    }

    private static String changed(String before, String now) {
        if (!now.equals(before)) {
            System.out.println(now);
        }
        return now;
    }

    private static String tasks(KafkaStreams streams) {
        TreeSet<String> active = new TreeSet<>();
        TreeSet<String> standby = new TreeSet<>();
        streams.metadataForLocalThreads().forEach(thread -> {
            thread.activeTasks().stream().map(TaskMetadata::taskId).forEach(task -> active.add(task.toString()));
            thread.standbyTasks().stream().map(TaskMetadata::taskId).forEach(task -> standby.add(task.toString()));
        });
        return String.join(",", active) + "|" + String.join(",", standby);
    }

    private static String hosts(KafkaStreams streams) {
        return streams.metadataForAllStreamsClients().stream()
            .map(host -> host.hostInfo().host() + ":" + host.hostInfo().port()
                + "/" + names(host.topicPartitions()) + "/" + names(host.standbyTopicPartitions()))
            .sorted()
            .collect(Collectors.joining(";"));
    }

    private static String names(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).sorted().collect(Collectors.joining(","));
    }

    private static String positions(KafkaStreams streams) {
        TreeSet<String> found = new TreeSet<>();
        new TreeMap<>(streams.allLocalStorePartitionLags()).forEach((store, lags) -> lags.forEach(
            (partition, lag) -> found.add(store + "-" + partition + "=" + lag.currentOffsetPosition())));
        return String.join(",", found);
    }

    private static final class Restorations implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition partition, String store, long start, long end) {
            System.out.println("RESTORE " + store + "-" + partition.partition() + " " + start + " " + end);
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long batchEnd, long restored) {}

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long restored) {
            System.out.println("RESTORED " + store + "-" + partition.partition() + " " + restored);
        }
    }

    private static final class FutureClients extends DefaultKafkaClientSupplier {
        @Override
        public Consumer<byte[], byte[]> getConsumer(Map<String, Object> settings) {
            settings.put("partition.assignment.strategy", FutureAssignor.class.getName());
            return super.getConsumer(settings);
        }
    }

    /** Knows one version more, until the leader tells it which version all members know. */
    public static final class FutureAssignor extends StreamsPartitionAssignor {
        private static final int FUTURE_VERSION = StreamsAssignmentProtocolVersions.LATEST_SUPPORTED_VERSION + 1;

        public FutureAssignor() {
            usedSubscriptionMetadataVersion = FUTURE_VERSION;
        }

        @Override
        public ByteBuffer subscriptionUserData(Set<String> topics) {
            boolean future = usedSubscriptionMetadataVersion == FUTURE_VERSION;
            System.out.println("VERSION " + usedSubscriptionMetadataVersion);
            usedSubscriptionMetadataVersion = Math.min(usedSubscriptionMetadataVersion, FUTURE_VERSION - 1);
            ByteBuffer data = super.subscriptionUserData(topics);
            if (!future) {
                return data;
            }
            usedSubscriptionMetadataVersion = FUTURE_VERSION;
            data = ByteBuffer.allocate(9).putInt(FUTURE_VERSION).putInt(FUTURE_VERSION).put((byte) 1);
            return data.flip();
        }
    }
}
