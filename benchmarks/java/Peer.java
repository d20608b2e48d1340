import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;

/**
 * The programs of the benchmark of peers, as they are in {@code programs.py}.
 *
 * <p>Arguments are settings (name=value); {@code program}, {@code input}, {@code output}, {@code table} and {@code name} are its own.
 * What it reads and writes is described in {@code peers/process.py}.
 */
public final class Peer {
    private static final long WINDOW_MS = 10_000;
    private static final long GRACE_MS = 5_000;
    private static final long SAMPLE_MS = 20;
    private static final Serde<String> STRING = Serdes.String();
    private static final Serde<Long> LONG = Serdes.Long();

    private static final List<Metric> counters = new ArrayList<>();
    private static volatile long began;
    private static volatile double cpuBegan;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String argument : arguments) {
            int split = argument.indexOf('=');
            settings.put(argument.substring(0, split), argument.substring(split + 1));
        }
        StreamsBuilder builder = new StreamsBuilder();
        settings.remove("name");
        build(
            (String) settings.remove("program"),
            builder,
            (String) settings.remove("input"),
            (String) settings.remove("table"),
            (String) settings.remove("output"));

        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setStateListener((now, before) -> say("{\"state\": \"%s\"}", now));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        say("{\"ready\": true}");
        if (System.in.read() < 0) {
            System.exit(1);
        }
        Thread watch = new Thread(() -> watch(streams));
        watch.setDaemon(true);
        watch.start();
        streams.start();
        while (System.in.read() >= 0) {
            // The rest of the first line; then it waits for the end.
        }
        boolean closed = streams.close(
            CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP)
                .withTimeout(Duration.ofSeconds(120)));
        say(
            "{\"began\": %.6f, \"ended\": %.6f, \"cpu_seconds\": %.3f, \"whole_cpu_seconds\": %.3f}",
            began / 1e9,
            System.nanoTime() / 1e9,
            cpu() - cpuBegan,
            cpu());
        System.exit(closed ? 0 : 1);
    }

    private static void build(String program, StreamsBuilder builder, String input, String table, String output) {
        KStream<String, String> stream = builder.stream(input, Consumed.with(STRING, STRING));
        switch (program) {
            case "lines" -> stream
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with("words", STRING, STRING))
                .count(Materialized.with(STRING, LONG))
                .toStream()
                .to(output, Produced.with(STRING, LONG));
            case "tumbling" -> stream
                .groupByKey(Grouped.with(STRING, STRING))
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(WINDOW_MS), Duration.ofMillis(GRACE_MS)))
                .count(Materialized.with(STRING, LONG))
                .toStream()
                .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, WINDOW_MS), LONG));
            case "count", "hot" -> stream
                .groupByKey(Grouped.with(STRING, STRING))
                .count(Materialized.with(STRING, LONG))
                .toStream()
                .to(output, Produced.with(STRING, LONG));
            case "join" -> stream
                .join(
                    builder.table(table, Consumed.with(STRING, STRING)),
                    (left, right) -> left + right,
                    Joined.with(STRING, STRING, STRING))
                .to(output, Produced.with(STRING, STRING));
            case "stateless" -> stream
                .filter((key, value) -> value.length() > 2)
                .mapValues(value -> value.toUpperCase(Locale.ROOT))
                .to(output, Produced.with(STRING, STRING));
            default -> throw new IllegalArgumentException(program);
        }
    }

    private static void watch(KafkaStreams streams) {
        long last = 0;
        while (true) {
            long now = processed(streams);
            if (now > 0 && last == 0) {
                cpuBegan = cpu();
                began = System.nanoTime();
            }
            if (now != last) {
                say("{\"processed\": %d}", now);
                last = now;
            }
            try {
                Thread.sleep(SAMPLE_MS);
            } catch (InterruptedException end) {
                return;
            }
        }
    }

    /** Returns how many records all stream threads have processed. */
    private static long processed(KafkaStreams streams) {
        double total = 0;
        if (counters.isEmpty()) { // looked up once, as that takes time
            for (Metric metric : streams.metrics().values()) {
                if (metric.metricName().name().equals("process-total")
                    && metric.metricName().group().equals("stream-thread-metrics")) {
                    counters.add(metric);
                }
            }
        }
        for (Metric metric : counters) {
            total += ((Number) metric.metricValue()).doubleValue();
        }
        return (long) total;
    }

    private static synchronized void say(String format, Object... values) {
        System.out.println(String.format(Locale.ROOT, format, values));
        System.out.flush();
    }

    private static double cpu() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }
}
