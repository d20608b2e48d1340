package differential;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Records what Kafka Streams does with cases: folders with {@code case.json} and {@code input.jsonl}, to which it adds
 * {@code expected.jsonl} and {@code stores.jsonl}; and what it makes of topologies: for each line of {@code describe.jsonl}
 * {@code <topology>.txt} and {@code <topology>.topics.json}.
 *
 * <p>Arguments: the folder of the cases, and a directory for state.
 */
public final class Recorder {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final List<String> KEYS = List.of("k1", "k2", "k3", "k4", "k5");

    private final Topologies topologies = new Topologies();
    private final Path states;
    private Path state;
    private int count;

    private Recorder(Path states) {
        this.states = states;
    }

    /** Records every case below a folder. */
    public static void main(String[] arguments) throws IOException {
        Path folder = Path.of(arguments[0]);
        Recorder recorder = new Recorder(Path.of(arguments[1]));
        try (Stream<Path> entries = Files.list(folder)) {
            for (Path entry : entries.filter(Files::isDirectory).sorted().toList()) {
                recorder.record(entry);
            }
        }
        Path wanted = folder.resolve("describe.jsonl");
        if (Files.exists(wanted)) {
            for (String line : Files.readAllLines(wanted)) {
                recorder.describe(JSON.readTree(line), folder);
            }
        }
    }

    private Properties settings(JsonNode... maps) {
        Properties settings = new Properties();
        state = states.resolve("" + count++);
        settings.put("application.id", "app");
        settings.put("bootstrap.servers", "none:1");
        settings.put("state.dir", state.toString());
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        for (JsonNode map : maps) {
            map.fields().forEachRemaining(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        }
        return settings;
    }

    private void describe(JsonNode wanted, Path folder) throws IOException {
        String name = wanted.get("topology").asText();
        Properties settings = settings(wanted.get("config"));
        Topology topology = topologies.build(name, settings);
        String text = topology.describe().toString().replaceAll("[\\w.]+\\$\\$Lambda[\\w/$]*@[0-9a-f]+", "<lambda>");
        Files.writeString(folder.resolve(name + ".txt"), text);
        JsonNode topics = TopicsOfTopology.of(topologies.build(name, settings), settings);
        Files.writeString(folder.resolve(name + ".topics.json"), JSON.writerWithDefaultPrettyPrinter().writeValueAsString(topics));
    }

    private void record(Path folder) throws IOException {
        JsonNode details = JSON.readTree(folder.resolve("case.json").toFile());
        Properties settings = settings(details.get("config"), details.get("config_override"));
        boolean deferred = details.get("deferred_commit").asBoolean();
        try (PrintWriter expected = new PrintWriter(folder.resolve("expected.jsonl").toFile(), "UTF-8");
                PrintWriter stores = new PrintWriter(folder.resolve("stores.jsonl").toFile(), "UTF-8")) {
            TopologyTestDriver driver = start(details.get("topology").asText(), settings, expected);
            if (driver == null) {
                return;
            }
            Output output = new Output(expected);
            SteppedDriver stepped = new SteppedDriver(driver, !deferred, output::add);
            boolean failed = false;
            for (String line : Files.readAllLines(folder.resolve("input.jsonl"))) {
                failed = !output.runs(() -> run(stepped, line));
                stepped.capture();
                output.writeFailure();
                output.next();
                if (failed) {
                    break;
                }
            }
            if (!failed) {
                write(driver, stores);
            }
            close(driver);
        }
    }

    /** Starts a driver, or writes that the topology cannot be run. */
    private TopologyTestDriver start(String name, Properties settings, PrintWriter expected) {
        try {
            return new TopologyTestDriver(topologies.build(name, settings), settings, Instant.EPOCH);
        } catch (RuntimeException error) {
            expected.print(JSON.createObjectNode().put("i", -1).put("error", error.getClass().getName())
                .put("msg", error.getMessage()) + "\n");
            return null;
        }
    }

    /** Closes and forgets; after a failure, or with records still in caches, the driver cannot close cleanly. */
    private void close(TopologyTestDriver driver) throws IOException {
        try {
            driver.close();
        } catch (RuntimeException error) {
            System.err.println(error);
        }
        if (!Files.exists(state)) {
            return;
        }
        try (Stream<Path> left = Files.walk(state)) {
            for (Path path : left.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(path);
            }
        }
    }

    private static void run(SteppedDriver driver, String line) throws IOException {
        JsonNode op = JSON.readTree(line);
        switch (op.get("op").asText()) {
            case "pipe" -> {
                enqueue(driver, op);
                driver.work();
                driver.updateGlobal();
            }
            case "enqueue" -> {
                enqueue(driver, op);
                driver.updateGlobal();
            }
            case "drain" -> driver.work();
            case "advance" -> driver.advance(op.get("ms").asLong());
            case "commit" -> {
                driver.commit();
                driver.work();
            }
            default -> throw new IllegalArgumentException(line);
        }
    }

    private static void enqueue(SteppedDriver driver, JsonNode op) throws IOException {
        RecordHeaders headers = new RecordHeaders();
        for (JsonNode header : op.get("h")) {
            headers.add(header.get(0).asText(), header.get(1).binaryValue());
        }
        driver.enqueue(op.get("topic").asText(), op.get("ts").asLong(), bytes(op.get("k")), bytes(op.get("v")), headers);
    }

    private static byte[] bytes(JsonNode base64) throws IOException {
        return base64.isNull() ? null : base64.binaryValue();
    }

    /** Something that may fail. */
    private interface Step {
        void run() throws IOException;
    }

    /** Writes what was sent, numbered by operation. */
    private static final class Output {
        private final PrintWriter writer;
        private int op;
        private int count;
        private RuntimeException failure;

        Output(PrintWriter writer) {
            this.writer = writer;
        }

        boolean runs(Step step) throws IOException {
            try {
                step.run();
                return true;
            } catch (RuntimeException error) {
                failure = error;
                return false;
            }
        }

        void writeFailure() {
            if (failure != null) {
                ObjectNode row = JSON.createObjectNode().put("i", op).put("error", failure.getClass().getName())
                    .put("msg", failure.getMessage())
                    .put("cause", failure.getCause() == null ? null : failure.getCause().getClass().getName());
                writer.print(row + "\n");
            }
        }

        void next() {
            op++;
        }

        void add(ProducerRecord<byte[], byte[]> record) {
            ObjectNode row = JSON.createObjectNode().put("i", op).put("n", count++).put("topic", record.topic())
                .put("k", record.key()).put("v", record.value()).put("ts", record.timestamp());
            if (record.partition() != null) {
                row.put("partition", record.partition());
            }
            if (record.headers().iterator().hasNext()) {
                ArrayNode headers = row.putArray("h");
                for (Header header : record.headers()) {
                    boolean stack = header.key().equals("__streams.errors.stacktrace");
                    headers.addArray().add(header.key()).add(stack ? null : header.value());
                }
            }
            writer.print(row + "\n");
        }
    }

    private static void write(TopologyTestDriver driver, PrintWriter writer) {
        for (Map.Entry<String, StateStore> entry : new TreeMap<>(driver.getAllStateStores()).entrySet()) {
            for (ObjectNode row : rows(entry.getValue())) {
                ObjectNode named = JSON.createObjectNode().put("store", entry.getKey());
                named.setAll(row);
                writer.print(named + "\n");
            }
        }
        for (Map.Entry<MetricName, ? extends Metric> metric : driver.metrics().entrySet()) {
            if (metric.getKey().name().equals("dropped-records-total")) {
                long value = ((Double) metric.getValue().metricValue()).longValue();
                writer.print(JSON.createObjectNode().put("metric", metric.getKey().name()).put("value", value) + "\n");
            }
        }
    }

    @SuppressWarnings("unchecked")
    private static List<ObjectNode> rows(StateStore store) {
        List<ObjectNode> rows = new ArrayList<>();
        if (store instanceof VersionedKeyValueStore) {
            for (String key : KEYS) {
                VersionedRecord<Object> found = ((VersionedKeyValueStore<Object, Object>) store).get(key);
                if (found != null) {
                    rows.add(row("versioned").put("key", key).put("value", text(found.value())).put("ts", found.timestamp()));
                }
            }
        } else if (store instanceof WindowStore) {
            try (KeyValueIterator<Windowed<Object>, Object> all = ((WindowStore<Object, Object>) store).all()) {
                all.forEachRemaining(found -> rows.add(windowed("window", found)));
            }
        } else if (store instanceof SessionStore) {
            for (String key : KEYS) {
                try (KeyValueIterator<Windowed<Object>, Object> all = ((SessionStore<Object, Object>) store).fetch(key)) {
                    all.forEachRemaining(found -> rows.add(windowed("session", found)));
                }
            }
        } else if (store instanceof KeyValueStore) {
            try (KeyValueIterator<Object, Object> all = ((KeyValueStore<Object, Object>) store).all()) {
                all.forEachRemaining(found -> rows.add(valued(row("kv").put("key", text(found.key)), found.value)));
            }
        } else {
            rows.add(row("other").put("class", store.getClass().getSimpleName()));
        }
        return rows;
    }

    private static ObjectNode row(String kind) {
        return JSON.createObjectNode().put("kind", kind);
    }

    private static ObjectNode windowed(String kind, KeyValue<Windowed<Object>, Object> found) {
        ObjectNode row = row(kind).put("key", text(found.key.key()))
            .put("start", found.key.window().start()).put("end", found.key.window().end());
        return valued(row, found.value);
    }

    private static ObjectNode valued(ObjectNode row, Object value) {
        if (value instanceof ValueTimestampHeaders<?> all) {
            return row.put("value", text(all.value())).put("ts", all.timestamp()).put("headers", "" + all.headers());
        }
        if (value instanceof ValueAndTimestamp<?> both) {
            return row.put("value", text(both.value())).put("ts", both.timestamp());
        }
        return row.put("value", text(value));
    }

    private static String text(Object value) {
        return value instanceof byte[] bytes ? Arrays.toString(bytes) : String.valueOf(value);
    }
}
