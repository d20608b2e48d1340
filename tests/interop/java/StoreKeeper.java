import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.Function;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.DslStoreFormat;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.AggregationWithHeaders;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;
import org.apache.kafka.streams.state.DslSessionParams;
import org.apache.kafka.streams.state.DslStoreSuppliers;
import org.apache.kafka.streams.state.DslWindowParams;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.RocksDBConfigSetter;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;
import org.rocksdb.Options;

/**
 * Keeps one store of every kind, changes them as the records of a topic say, and prints what they hold.
 *
 * <p>A record's key names a store and its value is a JSON array: the operation and its arguments. The operation {@code dump}
 * prints, under a label, what the store's reads return, as one JSON object per line; the same is done for all stores, under
 * the label {@code start}, before the first record. The program runs until its standard input ends.
 */
public final class StoreKeeper {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Serde<String> STRING = Serdes.String();
    private static final Duration RETENTION = Duration.ofSeconds(120);
    private static final Duration WINDOW = Duration.ofSeconds(10);
    private static final Duration HISTORY = Duration.ofSeconds(60);
    private static final List<String> KEYS = List.of("a", "aa", "ab", "b", "ba", "c");
    private static final int VERSIONS_ASKED = 40;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String argument : arguments) {
            int split = argument.indexOf('=');
            settings.put(argument.substring(0, split), argument.substring(split + 1));
        }
        String input = (String) settings.remove("input");
        long epoch = Long.parseLong((String) settings.remove("epoch"));
        if (settings.remove("small.buffers") != null) {
            settings.put("rocksdb.config.setter", SmallBuffers.class);
        }

        List<StoreBuilder<?>> stores = stores();
        Topology topology = new Topology();
        topology.addSource("source", new StringDeserializer(), new StringDeserializer(), input);
        topology.addProcessor("keeper", () -> new Keeper(stores.stream().map(StoreBuilder::name).toList(), epoch), "source");
        stores.forEach(store -> topology.addStateStore(store, "keeper"));

        KafkaStreams streams = new KafkaStreams(topology, settings);
        streams.setStateListener((now, before) -> System.out.println(now));
        streams.setGlobalStateRestoreListener(new Restores());
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        streams.metadataForLocalThreads().forEach(thread -> System.out.println("THREAD " + thread.threadName()));
        while (System.in.read() >= 0) {
            // Whoever started this program holds its standard input open for as long as it is to run.
        }
        boolean closed = streams.close(
            CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP)
                .withTimeout(Duration.ofSeconds(60)));
        System.out.println(closed ? "CLOSED" : "NOT CLOSED IN TIME");
        System.exit(closed ? 0 : 1);
    }

    private static List<StoreBuilder<?>> stores() {
        DslStoreSuppliers dsl = BuiltInDslStoreSuppliers.ROCKS_DB;
        EmitStrategy onClose = EmitStrategy.onWindowClose();
        return List.of(
            Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("kv"), STRING, STRING),
            Stores.timestampedKeyValueStoreBuilder(
                Stores.persistentTimestampedKeyValueStore("kv-timestamped"), STRING, STRING),
            Stores.timestampedKeyValueStoreWithHeadersBuilder(
                Stores.persistentTimestampedKeyValueStoreWithHeaders("kv-headers"), STRING, STRING),
            Stores.windowStoreBuilder(
                Stores.persistentWindowStore("window", RETENTION, WINDOW, false), STRING, STRING),
            Stores.windowStoreBuilder(
                Stores.persistentWindowStore("window-duplicates", RETENTION, WINDOW, true), STRING, STRING),
            Stores.timestampedWindowStoreBuilder(
                Stores.persistentTimestampedWindowStore("window-timestamped", RETENTION, WINDOW, false), STRING, STRING),
            Stores.timestampedWindowStoreWithHeadersBuilder(
                Stores.persistentTimestampedWindowStoreWithHeaders("window-headers", RETENTION, WINDOW, false),
                STRING,
                STRING),
            Stores.timestampedWindowStoreBuilder(
                dsl.windowStore(new DslWindowParams(
                    "window-ordered", RETENTION, WINDOW, false, onClose, false, DslStoreFormat.TIMESTAMPED)),
                STRING,
                STRING),
            Stores.timestampedWindowStoreBuilder(
                dsl.windowStore(new DslWindowParams(
                    "window-ordered-index", RETENTION, WINDOW, false, onClose, true, DslStoreFormat.TIMESTAMPED)),
                STRING,
                STRING),
            Stores.timestampedWindowStoreWithHeadersBuilder(
                dsl.windowStore(new DslWindowParams(
                    "window-ordered-headers", RETENTION, WINDOW, false, onClose, false, DslStoreFormat.HEADERS)),
                STRING,
                STRING),
            Stores.sessionStoreBuilder(Stores.persistentSessionStore("session", RETENTION), STRING, STRING),
            Stores.sessionStoreWithHeadersBuilder(
                Stores.persistentSessionStoreWithHeaders("session-headers", RETENTION), STRING, STRING),
            Stores.sessionStoreBuilder(
                dsl.sessionStore(new DslSessionParams("session-ordered", RETENTION, onClose, DslStoreFormat.PLAIN)),
                STRING,
                STRING),
            Stores.sessionStoreWithHeadersBuilder(
                dsl.sessionStore(
                    new DslSessionParams("session-ordered-headers", RETENTION, onClose, DslStoreFormat.HEADERS)),
                STRING,
                STRING),
            Stores.versionedKeyValueStoreBuilder(
                Stores.persistentVersionedKeyValueStore("versioned", HISTORY), STRING, STRING));
    }

    /** Makes RocksDB write what it holds to disk all the time. */
    public static final class SmallBuffers implements RocksDBConfigSetter {
        @Override
        public void setConfig(String storeName, Options options, Map<String, Object> configs) {
            options.setWriteBufferSize(4 * 1024);
        }

        @Override
        public void close(String storeName, Options options) {
        }
    }

    private static final class Restores implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition partition, String store, long start, long end) {
            System.out.println("RESTORE " + store + " " + start + " " + end);
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long end, long restored) {
        }

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long total) {
            System.out.println("RESTORED " + store + " " + total);
        }
    }

    private static final class Keeper extends ContextualProcessor<String, String, Void, Void> {
        private final List<String> names;
        private final long epoch;

        Keeper(List<String> names, long epoch) {
            this.names = names;
            this.epoch = epoch;
        }

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            super.init(context);
            dumpAll("start");
        }

        @Override
        public void process(Record<String, String> record) {
            try {
                JsonNode command = JSON.readTree(record.value());
                if (command.get(0).asText().equals("dump")) {
                    dumpAll(command.get(1).asText());
                } else {
                    change(record.key(), command, record);
                }
            } catch (java.io.IOException error) {
                throw new IllegalArgumentException(record.value(), error);
            }
        }

        private void change(String name, JsonNode command, Record<String, String> record) {
            StateStore store = context().getStateStore(name);
            String operation = command.get(0).asText();
            String key = command.get(1).asText();
            String text = command.size() > 2 && !command.get(2).isNull() ? command.get(2).asText() : null;
            Object value = text == null ? null : valueOf(name, text, record);
            if (store instanceof VersionedKeyValueStore) {
                VersionedKeyValueStore<String, String> versioned = context().getStateStore(name);
                if (operation.equals("delete")) {
                    versioned.delete(key, command.get(3).asLong());
                } else {
                    versioned.put(key, text, command.get(3).asLong());
                }
            } else if (store instanceof KeyValueStore) {
                KeyValueStore<String, Object> pairs = context().getStateStore(name);
                switch (operation) {
                    case "delete" -> pairs.delete(key);
                    case "putIfAbsent" -> pairs.putIfAbsent(key, value);
                    case "append" -> {
                        Object before = pairs.get(key);
                        pairs.put(key, before == null ? value : valueOf(name, textOf(before) + text, record));
                    }
                    default -> pairs.put(key, value);
                }
            } else if (store instanceof WindowStore) {
                WindowStore<String, Object> windows = context().getStateStore(name);
                windows.put(key, value, command.get(3).asLong());
            } else {
                SessionStore<String, Object> sessions = context().getStateStore(name);
                sessions.put(new Windowed<>(key, new SessionWindow(command.get(3).asLong(), command.get(4).asLong())), value);
            }
        }

        private static Object valueOf(String name, String text, Record<String, String> record) {
            if (name.startsWith("session")) {
                return name.endsWith("headers") ? AggregationWithHeaders.make(text, new RecordHeaders()) : text;
            }
            if (name.endsWith("headers")) {
                return ValueTimestampHeaders.make(text, record.timestamp(), record.headers());
            }
            boolean timestamped = name.endsWith("timestamped") || name.startsWith("window-ordered");
            return timestamped ? ValueAndTimestamp.make(text, record.timestamp()) : text;
        }

        private static String textOf(Object value) {
            return value instanceof ValueAndTimestamp<?> pair ? (String) pair.value()
                : value instanceof ValueTimestampHeaders<?> triple ? (String) triple.value() : (String) value;
        }

        private static Object shown(Object value) {
            if (value instanceof ValueAndTimestamp<?> pair) {
                return List.of(pair.value(), pair.timestamp());
            }
            if (value instanceof ValueTimestampHeaders<?> triple) {
                return List.of(triple.value(), triple.timestamp(), shown(triple.headers()));
            }
            if (value instanceof AggregationWithHeaders<?> pair) {
                return pair.aggregation();
            }
            if (value instanceof VersionedRecord<?> version) {
                return List.of(version.value(), version.timestamp(), version.validTo().orElse(-1L));
            }
            return value;
        }

        private static Object shown(Headers headers) {
            List<Object> found = new ArrayList<>();
            for (Header header : headers) {
                String value = header.value() == null ? "<null>" : new String(header.value(), StandardCharsets.UTF_8);
                found.add(List.of(header.key(), value));
            }
            return found;
        }

        private static <K> List<Object> rows(KeyValueIterator<K, ?> iterator) {
            List<Object> rows = new ArrayList<>();
            try (iterator) {
                while (iterator.hasNext()) {
                    KeyValue<K, ?> row = iterator.next();
                    if (row.key instanceof Windowed<?> windowed) {
                        rows.add(List.of(
                            windowed.key(), windowed.window().start(), windowed.window().end(), shown(row.value)));
                    } else {
                        rows.add(List.of(row.key, shown(row.value)));
                    }
                }
            }
            return rows;
        }

        private void dumpAll(String label) {
            for (String name : names) {
                Map<String, Object> reads = new LinkedHashMap<>();
                reads.put("label", label);
                reads.put("store", name);
                StateStore store = context().getStateStore(name);
                if (store instanceof VersionedKeyValueStore) {
                    dumpVersions(reads, context().getStateStore(name));
                } else if (store instanceof KeyValueStore) {
                    dumpPairs(reads, context().getStateStore(name));
                } else if (store instanceof WindowStore) {
                    dumpWindows(reads, context().getStateStore(name));
                } else {
                    dumpSessions(reads, context().getStateStore(name), name.startsWith("session-ordered"));
                }
                print("READ", reads);
            }
            System.out.println("DUMPED " + label);
        }

        private static void print(String word, Object what) {
            try {
                System.out.println(word + " " + JSON.writeValueAsString(what));
            } catch (java.io.IOException error) {
                throw new IllegalStateException(error);
            }
        }

        private static List<Object> perKey(Function<String, Object> read) {
            List<Object> found = new ArrayList<>();
            KEYS.forEach(key -> found.add(read.apply(key)));
            return found;
        }

        private void dumpPairs(Map<String, Object> reads, KeyValueStore<String, Object> store) {
            reads.put("get", perKey(key -> shown(store.get(key))));
            reads.put("all", rows(store.all()));
            reads.put("reverseAll", rows(store.reverseAll()));
            reads.put("range", rows(store.range("aa", "b")));
            reads.put("range to", rows(store.range(null, "ab")));
            reads.put("range from", rows(store.range("ab", null)));
            reads.put("reverseRange", rows(store.reverseRange("aa", "b")));
            reads.put("prefixScan", rows(store.prefixScan("a", new StringSerializer())));
        }

        private void dumpWindows(Map<String, Object> reads, WindowStore<String, Object> store) {
            reads.put("all", rows(store.all()));
            reads.put("backwardAll", rows(store.backwardAll()));
            for (long[] range : ranges()) {
                long from = range[0];
                long to = range[1];
                String suffix = " " + (from - epoch) + ".." + (to - epoch);
                reads.put("fetchAll" + suffix, rows(store.fetchAll(from, to)));
                reads.put("backwardFetchAll" + suffix, rows(store.backwardFetchAll(from, to)));
                reads.put("fetch key" + suffix, perKey(key -> windowRows(store.fetch(key, from, to))));
                reads.put("backwardFetch key" + suffix, perKey(key -> windowRows(store.backwardFetch(key, from, to))));
                reads.put("fetch keys" + suffix, rows(store.fetch("a", "b", from, to)));
                reads.put("fetch keys to" + suffix, rows(store.fetch(null, "aa", from, to)));
                reads.put("backwardFetch keys" + suffix, rows(store.backwardFetch("aa", null, from, to)));
                reads.put("fetch one" + suffix, perKey(key -> shown(store.fetch(key, from))));
            }
        }

        private static List<Object> windowRows(WindowStoreIterator<Object> iterator) {
            return rows(iterator);
        }

        private void dumpSessions(Map<String, Object> reads, SessionStore<String, Object> store, boolean ordered) {
            reads.put("fetch key", perKey(key -> rows(store.fetch(key))));
            reads.put("backwardFetch key", perKey(key -> rows(store.backwardFetch(key))));
            reads.put("fetch keys", rows(store.fetch("a", "b")));
            reads.put("backwardFetch keys", rows(store.backwardFetch("aa", null)));
            for (long[] range : ranges()) {
                long from = range[0];
                long to = range[1];
                String suffix = " " + (from - epoch) + ".." + (to - epoch);
                reads.put("findSessions" + suffix, perKey(key -> rows(store.findSessions(key, from, to))));
                reads.put("findSessions keys" + suffix, rows(store.findSessions("a", "b", from, to)));
                reads.put("backwardFindSessions" + suffix, perKey(key -> rows(store.backwardFindSessions(key, from, to))));
                reads.put("fetchSession" + suffix, perKey(key -> shown(store.fetchSession(key, from, from))));
                if (ordered) {
                    reads.put("findSessions ended" + suffix, rows(store.findSessions(from, to)));
                }
            }
        }

        private void dumpVersions(Map<String, Object> reads, VersionedKeyValueStore<String, String> store) {
            reads.put("get", perKey(key -> shown(store.get(key))));
            for (int step = 0; step < VERSIONS_ASKED; step++) {
                long asOf = epoch + step * 10_000L;
                reads.put("get " + step * 10_000, perKey(key -> shown(store.get(key, asOf))));
            }
        }

        private List<long[]> ranges() {
            return List.of(
                new long[] {0, epoch + 1_000_000_000},
                new long[] {epoch + 60_000, epoch + 130_000},
                new long[] {epoch + 150_000, epoch + 260_000});
        }
    }
}
