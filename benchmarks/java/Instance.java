import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.Scanner;
import java.util.zip.CRC32;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.LagInfo;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TaskMetadata;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

/**
 * Keeps the last value of every key in a table, and writes its own name to the output for every change, until standard input ends.
 *
 * <p>Arguments are settings (name=value); {@code input}, {@code output} and {@code name} are its own. Reports what happens as lines
 * of JSON: states, tasks, and restoration with its time and CPU. The line {@code check} on standard input makes it report the
 * number of keys in its stores and their checksum, and {@code lag} by how many offsets a store is behind at most.
 */
public final class Instance {
    private static long began;
    private static double cpuBegan;
    private static long restored;
    private static int restoring;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String argument : arguments) {
            int split = argument.indexOf('=');
            settings.put(argument.substring(0, split), argument.substring(split + 1));
        }
        String input = (String) settings.remove("input");
        String output = (String) settings.remove("output");
        Bytes name = Bytes.wrap(((String) settings.remove("name")).getBytes(StandardCharsets.UTF_8));

        StreamsBuilder builder = new StreamsBuilder();
        builder
            .stream(input, Consumed.with(Serdes.Bytes(), Serdes.Bytes()))
            .toTable(Materialized.<Bytes, Bytes, KeyValueStore<Bytes, byte[]>>as("table")
                .withKeySerde(Serdes.Bytes())
                .withValueSerde(Serdes.Bytes()))
            .toStream()
            .mapValues(value -> name)
            .to(output, Produced.with(Serdes.Bytes(), Serdes.Bytes()));

        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setStateListener((now, before) -> say("{\"state\": \"%s\"}", now));
        streams.setGlobalStateRestoreListener(new Progress());
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        Thread watch = new Thread(() -> watchTasks(streams));
        watch.setDaemon(true);
        watch.start();
        Scanner commands = new Scanner(System.in);
        while (commands.hasNextLine()) {
            if (commands.nextLine().equals("check")) {
                check(streams.store(StoreQueryParameters.fromNameAndType("table", QueryableStoreTypes.keyValueStore())));
            } else {
                reportLag(streams);
            }
        }
        boolean closed = streams.close(
            CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP)
                .withTimeout(Duration.ofSeconds(120)));
        System.exit(closed ? 0 : 1);
    }

    private static synchronized void say(String format, Object... values) {
        System.out.println(String.format(Locale.ROOT, format, values));
        System.out.flush();
    }

    private static double cpu() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    private static void watchTasks(KafkaStreams streams) {
        String last = "";
        while (true) {
            String tasks = tasks(streams);
            if (!tasks.equals(last)) {
                say("%s", tasks);
                last = tasks;
            }
            try {
                Thread.sleep(50);
            } catch (InterruptedException end) {
                return;
            }
        }
    }

    private static String tasks(KafkaStreams streams) {
        var threads = streams.metadataForLocalThreads();
        return String.format(
            "{\"active\": %s, \"standby\": %s}",
            names(threads.stream().flatMap((ThreadMetadata thread) -> thread.activeTasks().stream()).toList()),
            names(threads.stream().flatMap((ThreadMetadata thread) -> thread.standbyTasks().stream()).toList()));
    }

    private static List<String> names(List<TaskMetadata> tasks) {
        return tasks.stream().map(task -> "\"" + task.taskId() + "\"").sorted().toList();
    }

    private static void check(ReadOnlyKeyValueStore<Bytes, Object> store) {
        long keys = 0;
        long checksum = 0;
        try (KeyValueIterator<Bytes, Object> rows = store.all()) {
            while (rows.hasNext()) {
                KeyValue<Bytes, Object> row = rows.next();
                CRC32 code = new CRC32();
                code.update(row.key.get());
                code.update(((Bytes) row.value).get());
                checksum += code.getValue();
                keys++;
            }
        }
        say("{\"check\": {\"keys\": %d, \"checksum\": %d}}", keys, checksum);
    }

    private static void reportLag(KafkaStreams streams) {
        long lag = streams.allLocalStorePartitionLags().values().stream()
            .flatMap(partitions -> partitions.values().stream())
            .mapToLong(LagInfo::offsetLag)
            .max()
            .orElse(0);
        say("{\"lag\": %d}", lag);
    }

    private static final class Progress implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition partition, String store, long start, long end) {
            synchronized (Instance.class) {
                if (began == 0) {
                    began = System.nanoTime();
                    cpuBegan = cpu();
                }
                restoring++;
            }
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long offset, long records) {
            synchronized (Instance.class) {
                restored += records;
            }
        }

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long records) {
            synchronized (Instance.class) {
                restoring--;
                say(
                    "{\"restored\": %d, \"seconds\": %.4f, \"cpu_seconds\": %.4f, \"left\": %d}",
                    restored, (System.nanoTime() - began) / 1e9, cpu() - cpuBegan, restoring);
            }
        }
    }
}
