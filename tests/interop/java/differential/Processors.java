package differential;

import static differential.Helpers.S;
import static differential.Helpers.cat;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.kstream.ValueTransformerWithKey;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.Cancellable;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.Punctuator;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/** The processors that topologies use; their Python twins are beside the Python topologies. */
final class Processors {
    private Processors() {}

    /** Counts per key in store {@code cnt}; punctuates in both times. */
    static final class KvCounter extends ContextualProcessor<String, String, String, String> {
        private KeyValueStore<String, Long> store;

        @Override
        public void init(ProcessorContext<String, String> context) {
            super.init(context);
            store = context.getStateStore("cnt");
            context.schedule(Duration.ofMillis(100), PunctuationType.STREAM_TIME, this::total);
            context.schedule(Duration.ofMillis(1000), PunctuationType.WALL_CLOCK_TIME,
                ts -> context.forward(new Record<>("*wall", "" + ts, ts)));
        }

        private void total(long ts) {
            long sum = 0;
            try (KeyValueIterator<String, Long> all = store.all()) {
                while (all.hasNext()) {
                    sum += all.next().value;
                }
            }
            context().forward(new Record<>("*sum@" + ts, "" + sum, ts));
        }

        @Override
        public void process(Record<String, String> record) {
            if (record.key() == null) {
                return;
            }
            if (record.value() == null) {
                store.delete(record.key());
                context().forward(record);
                return;
            }
            Long before = store.get(record.key());
            long count = before == null ? 1 : before + 1;
            store.put(record.key(), count);
            context().forward(record.withValue(record.key() + "=" + count));
        }
    }

    /** Sends values of even length to one child, others to the other, and k1 to both besides. */
    static final class Router extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(Record<String, String> record) {
            int length = record.value() == null ? 0 : record.value().length();
            context().forward(record, length % 2 == 0 ? "p-even" : "p-odd");
            if ("k1".equals(record.key())) {
                context().forward(record.withValue("both"));
            }
        }
    }

    /** Puts into the shared store and appends the value it replaces. */
    static final class SharedPut extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(Record<String, String> record) {
            if (record.key() == null) {
                return;
            }
            KeyValueStore<String, String> store = context().getStateStore("shared");
            String old = store.get(record.key());
            store.put(record.key(), record.value());
            context().forward(record.withValue(record.value() + old));
        }
    }

    /** Appends the shared store's value. */
    static final class SharedGet extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(Record<String, String> record) {
            if (record.key() == null) {
                return;
            }
            KeyValueStore<String, String> store = context().getStateStore("shared");
            context().forward(record.withValue(record.value() + "~" + store.get(record.key())));
        }
    }

    /** Puts into window store {@code ws} and forwards what it fetches around each record. */
    static final class WinProc extends ContextualProcessor<String, String, String, String> {
        private int seen;

        @Override
        public void process(Record<String, String> record) {
            if (record.key() == null) {
                return;
            }
            WindowStore<String, String> store = context().getStateStore("ws");
            long ts = record.timestamp();
            store.put(record.key(), record.value(), ts);
            List<String> found = new ArrayList<>();
            try (WindowStoreIterator<String> rows = store.fetch(record.key(), Math.max(0, ts - 100), ts + 20)) {
                rows.forEachRemaining(row -> found.add(row.key + "=" + row.value));
            }
            context().forward(record.withValue(String.join(",", found)));
            if (++seen % 5 == 0) {
                List<String> all = new ArrayList<>();
                try (KeyValueIterator<Windowed<String>, String> rows = store.fetchAll(Math.max(0, ts - 150), ts)) {
                    rows.forEachRemaining(row -> all.add(row.key.key() + "@" + row.key.window().start() + "=" + row.value));
                }
                context().forward(new Record<>("*all", String.join(",", all), ts));
            }
        }
    }

    /** What a processor does with its store; the comparison's docstring says why not all of it with a cached one. */
    enum Scans {
        ALL(true, true), FORWARD(true, false), WITHOUT_DELETES(false, true);

        final boolean deletes;
        final boolean backward;

        Scans(boolean deletes, boolean backward) {
            this.deletes = deletes;
            this.backward = backward;
        }

        boolean skips(Record<String, String> record) {
            return record.key() == null || record.value() == null && !deletes;
        }
    }

    /** Forwards every kind of range of store {@code r}. */
    static final class RangeProc extends ContextualProcessor<String, String, String, String> {
        private final Scans scans;

        RangeProc(Scans scans) {
            this.scans = scans;
        }

        @Override
        public void process(Record<String, String> record) {
            if (scans.skips(record)) {
                return;
            }
            KeyValueStore<String, String> store = context().getStateStore("r");
            String before = store.putIfAbsent(record.key() + "x", record.value());
            store.put(record.key(), record.value());
            show(record, "range", store.range("k1", "k3"));
            if (scans.backward) {
                show(record, "rev", store.reverseRange(null, "k3"));
            }
            show(record, "prefix", store.prefixScan("k", new StringSerializer()));
            show(record, "all", store.all());
            if (scans.backward) {
                show(record, "revall", store.reverseAll());
            }
            context().forward(record.withKey("put-if").withValue("" + before));
        }

        private void show(Record<String, String> record, String key, KeyValueIterator<String, String> rows) {
            List<String> found = new ArrayList<>();
            try (rows) {
                rows.forEachRemaining(row -> found.add(row.key + "=" + row.value));
            }
            context().forward(record.withKey(key).withValue(String.join(",", found)));
        }
    }

    /** Puts versions and forwards what the store knows. */
    static final class VerProc extends ContextualProcessor<String, String, String, String> {
        private int seen;

        @Override
        public void process(Record<String, String> record) {
            if (record.key() == null) {
                return;
            }
            VersionedKeyValueStore<String, String> store = context().getStateStore("v");
            String key = record.key();
            long ts = record.timestamp();
            long answer = store.put(key, record.value(), ts);
            context().forward(record.withValue(
                "rc=" + answer + " cur=" + show(store.get(key)) + " asof=" + show(store.get(key, ts - 50))));
            if (++seen % 7 == 0) {
                context().forward(record.withKey("*del").withValue(show(store.delete(key, Math.max(0, ts - 10)))));
            }
        }

        private static String show(VersionedRecord<String> record) {
            return record == null ? "null"
                : record.value() + "@" + record.timestamp() + ".."
                    + (record.validTo().isPresent() ? "" + record.validTo().get() : "-");
        }
    }

    /** Fills the global store with upper-cased values. */
    static final class GlobProc implements Processor<String, String, Void, Void> {
        private KeyValueStore<String, String> store;

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            store = context.getStateStore("gs");
        }

        @Override
        public void process(Record<String, String> record) {
            if (record.key() == null) {
                return;
            }
            if (record.value() == null) {
                store.delete(record.key());
            } else {
                store.put(record.key(), record.value().toUpperCase());
            }
        }
    }

    /** Appends the global store's value. */
    static final class GlobGet extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(Record<String, String> record) {
            KeyValueStore<String, String> store = context().getStateStore("gs");
            context().forward(record.withValue(record.value() + "/" + store.get(Helpers.first(record.value(), "n"))));
        }
    }

    /** Changes headers, timestamps and keys of what it forwards. */
    static final class HdrProc extends ContextualProcessor<String, String, String, String> {
        @Override
        public void init(ProcessorContext<String, String> context) {
            super.init(context);
            context.schedule(Duration.ofMillis(50), PunctuationType.STREAM_TIME,
                ts -> context.forward(new Record<>("*p", "" + ts, ts)));
        }

        @Override
        public void process(Record<String, String> record) {
            RecordHeaders headers = new RecordHeaders(record.headers());
            headers.add("proc", "x".getBytes(StandardCharsets.UTF_8)).remove("h2");
            long ts = record.value() == null ? record.timestamp() + 5 : record.timestamp();
            context().forward(record.withHeaders(headers).withTimestamp(ts));
            context().forward(new Record<>(null, "copy", record.timestamp()));
        }
    }

    /** Schedules in both times, one cancelled, one anchored. */
    static final class PunctProc extends ContextualProcessor<String, String, String, String> {
        private final Map<String, Integer> counts = new HashMap<>();
        private Cancellable third;

        @Override
        public void init(ProcessorContext<String, String> context) {
            super.init(context);
            context.schedule(Duration.ofMillis(100), PunctuationType.STREAM_TIME, fire("A"));
            context.schedule(Duration.ofMillis(300), PunctuationType.WALL_CLOCK_TIME, fire("B"));
            third = context.schedule(Duration.ofMillis(50), PunctuationType.STREAM_TIME, fire("C"));
            context.schedule(Instant.ofEpochMilli(150), Duration.ofMillis(400), PunctuationType.WALL_CLOCK_TIME, fire("D"));
        }

        private Punctuator fire(String name) {
            return ts -> {
                int count = counts.merge(name, 1, Integer::sum);
                context().forward(new Record<>(name, count + "@" + ts + "/st=" + context().currentStreamTimeMs(), ts));
                if (name.equals("C") && count == 3) {
                    third.cancel();
                }
            };
        }

        @Override
        public void process(Record<String, String> record) {
            context().forward(record);
        }
    }

    /** Merges sessions by hand. */
    static final class SessProc extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(Record<String, String> record) {
            if (record.key() == null || record.value() == null) {
                return;
            }
            SessionStore<String, String> store = context().getStateStore("ss");
            String key = record.key();
            long ts = record.timestamp();
            long start = ts;
            long end = ts;
            String merged = "";
            List<KeyValue<Windowed<String>, String>> found = new ArrayList<>();
            try (KeyValueIterator<Windowed<String>, String> rows = store.findSessions(key, Math.max(0, ts - 30), ts + 30)) {
                rows.forEachRemaining(found::add);
            }
            for (KeyValue<Windowed<String>, String> row : found) {
                start = Math.min(start, row.key.window().start());
                end = Math.max(end, row.key.window().end());
                merged = cat(merged, row.value);
                store.remove(row.key);
            }
            String value = cat(merged, record.value());
            store.put(new Windowed<>(key, new SessionWindow(start, end)), value);
            context().forward(record.withValue(start + ".." + end + "=" + value));
        }
    }

    /** Puts (or deletes) windows at steps of 20 ms and forwards what every kind of scan finds. */
    static final class WinScans extends ContextualProcessor<String, String, String, String> {
        private final Scans scans;

        WinScans(Scans scans) {
            this.scans = scans;
        }

        @Override
        public void process(Record<String, String> record) {
            if (scans.skips(record)) {
                return;
            }
            WindowStore<String, String> store = context().getStateStore("ws");
            String key = record.key();
            long ts = record.timestamp() - record.timestamp() % 20;
            store.put(key, record.value(), ts);
            show(record, "one", "" + store.fetch(key, Math.max(0, ts - 40)));
            show(record, "keys", keyed(store.fetch("k2", "k4", Math.max(0, ts - 100), ts)));
            show(record, "all", keyed(store.all()));
            if (scans.backward) {
                show(record, "back", windows(store.backwardFetch(key, Math.max(0, ts - 100), ts + 50)));
                show(record, "keys-back", keyed(store.backwardFetch(null, "k3", Math.max(0, ts - 100), ts)));
                show(record, "all-back", keyed(store.backwardAll()));
                show(record, "fetch-back", keyed(store.backwardFetchAll(Math.max(0, ts - 60), ts + 10)));
            }
        }

        private void show(Record<String, String> record, String key, String text) {
            context().forward(record.withKey(key).withValue(text));
        }

        private static String windows(WindowStoreIterator<String> rows) {
            List<String> found = new ArrayList<>();
            try (rows) {
                rows.forEachRemaining(row -> found.add(row.key + "=" + row.value));
            }
            return String.join(",", found);
        }
    }

    /** Puts (or removes) sessions and forwards what every kind of scan finds. */
    static final class SessScans extends ContextualProcessor<String, String, String, String> {
        private final Scans scans;

        SessScans(Scans scans) {
            this.scans = scans;
        }

        @Override
        public void process(Record<String, String> record) {
            if (scans.skips(record)) {
                return;
            }
            SessionStore<String, String> store = context().getStateStore("ss");
            String key = record.key();
            long ts = record.timestamp();
            long start = Math.max(0, ts - ts % 50);
            Windowed<String> session = new Windowed<>(key, new SessionWindow(start, start + ts % 7 * 5));
            if (record.value() == null) {
                store.remove(session);
            } else {
                store.put(session, record.value());
            }
            show(record, "fetch", keyed(store.fetch(key)));
            show(record, "find", keyed(store.findSessions(key, Math.max(0, ts - 60), ts)));
            show(record, "keys", keyed(store.findSessions("k2", "k4", Math.max(0, ts - 100), ts)));
            show(record, "fetch-keys", keyed(store.fetch("k1", "k5")));
            show(record, "one", "" + store.fetchSession(key, start, start + ts % 7 * 5));
            if (scans.backward) {
                show(record, "fetch-back", keyed(store.backwardFetch(key)));
                long latest = scans.deletes ? ts + 10 : Long.MAX_VALUE;
                show(record, "find-back", keyed(store.backwardFindSessions(key, Math.max(0, ts - 160), latest)));
                show(record, "keys-back", keyed(store.backwardFindSessions(null, "k3", Math.max(0, ts - 100), ts)));
            }
        }

        private void show(Record<String, String> record, String key, String text) {
            context().forward(record.withKey(key).withValue(text));
        }
    }

    private static String keyed(KeyValueIterator<Windowed<String>, String> rows) {
        List<String> found = new ArrayList<>();
        try (rows) {
            rows.forEachRemaining(row ->
                found.add(row.key.key() + "@" + row.key.window().start() + ".." + row.key.window().end() + "=" + row.value));
        }
        return String.join(",", found);
    }

    /** Forwards a value only if it differs from the key's last one. */
    static final class Dedup extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(Record<String, String> record) {
            if (record.key() == null) {
                return;
            }
            KeyValueStore<String, String> store = context().getStateStore("seen");
            String last = store.get(record.key());
            if (last == null ? record.value() == null : last.equals(record.value())) {
                return;
            }
            store.put(record.key(), record.value());
            context().forward(record);
        }
    }

    /** Makes {@link Dedup} and brings its store. */
    static final class DedupSupplier implements ProcessorSupplier<String, String, String, String> {
        @Override
        public Processor<String, String, String, String> get() {
            return new Dedup();
        }

        @Override
        public Set<StoreBuilder<?>> stores() {
            return Set.of(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("seen"), S, S));
        }
    }

    /** Numbers the records of each key. */
    static final class Numbering extends ContextualFixedKeyProcessor<String, String, String> {
        @Override
        public void process(FixedKeyRecord<String, String> record) {
            KeyValueStore<String, Long> store = context().getStateStore("n");
            Long before = store.get("" + record.key());
            long number = before == null ? 1 : before + 1;
            store.put("" + record.key(), number);
            RecordHeaders headers = new RecordHeaders(record.headers());
            headers.add("n", ("" + number).getBytes(StandardCharsets.UTF_8));
            context().forward(record.withValue(record.value() + "#" + number).withHeaders(headers));
        }
    }

    /** Appends how often the key was transformed. */
    static final class CountingTransformer implements ValueTransformerWithKey<String, String, String> {
        private KeyValueStore<String, Long> store;

        @Override
        public void init(org.apache.kafka.streams.processor.ProcessorContext context) {
            store = context.getStateStore("ts");
        }

        @Override
        public String transform(String key, String value) {
            Long before = store.get(key);
            long number = before == null ? 1 : before + 1;
            store.put(key, number);
            return value == null ? null : value + number;
        }

        @Override
        public void close() {}
    }

    /** Appends a hash sign. */
    static final class HashTransformer implements ValueTransformerWithKey<String, String, String> {
        @Override
        public void init(org.apache.kafka.streams.processor.ProcessorContext context) {}

        @Override
        public String transform(String key, String value) {
            return value == null ? null : value + "#";
        }

        @Override
        public void close() {}
    }
}
