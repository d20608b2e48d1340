package differential;

import java.time.Duration;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindowedSerializer;
import org.apache.kafka.streams.kstream.TimeWindowedSerializer;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/** What the definitions of topologies have in common; the Python definitions have the same helpers. */
final class Helpers {
    static final Serde<String> S = Serdes.String();
    static final Serde<Long> L = Serdes.Long();

    private Helpers() {}

    static KStream<String, String> st(StreamsBuilder b, String topic) {
        return b.stream(topic);
    }

    static KTable<String, String> tb(StreamsBuilder b, String topic) {
        return b.table(topic);
    }

    /** Appends, keeping the last 16 characters. */
    static String cat(String soFar, String value) {
        String all = soFar + value;
        return all.length() > 16 ? all.substring(all.length() - 16) : all;
    }

    static String j(String left, String right) {
        return left + "/" + right;
    }

    static long num(String text) {
        return Long.parseLong(text);
    }

    /** The first letter, or what stands for no value. */
    static String first(String value, String otherwise) {
        return value == null ? otherwise : value.substring(0, 1);
    }

    /** The text before the bar, or null where there is no bar or no text. */
    static String fk(String value) {
        int bar = value.indexOf('|');
        return bar <= 0 ? null : value.substring(0, bar);
    }

    static Duration ms(long milliseconds) {
        return Duration.ofMillis(milliseconds);
    }

    static Produced<String, Long> pl() {
        return Produced.with(S, L);
    }

    static Materialized<String, String, KeyValueStore<Bytes, byte[]>> kv(String name) {
        return Materialized.as(name);
    }

    static Materialized<String, String, WindowStore<Bytes, byte[]>> ws(String name) {
        return Materialized.as(name);
    }

    static Materialized<String, String, SessionStore<Bytes, byte[]>> sess(String name) {
        return Materialized.as(name);
    }

    /** Sends a time-windowed table to {@code out}. */
    static <V> void wout(KTable<Windowed<String>, V> table, long size, Serde<V> values) {
        wout(table.toStream(), size, values);
    }

    static <V> void wout(KStream<Windowed<String>, V> stream, long size, Serde<V> values) {
        Deserializer<Windowed<String>> none = (topic, data) -> { throw new UnsupportedOperationException("only written"); };
        Serde<Windowed<String>> keys = Serdes.serdeFrom(new TimeWindowedSerializer<>(S.serializer()), none);
        stream.to("out", Produced.with(keys, values));
    }

    /** Sends a session-windowed table to {@code out}. */
    static <V> void sout(KTable<Windowed<String>, V> table, Serde<V> values) {
        Deserializer<Windowed<String>> none = (topic, data) -> { throw new UnsupportedOperationException("only written"); };
        Serde<Windowed<String>> keys = Serdes.serdeFrom(new SessionWindowedSerializer<>(S.serializer()), none);
        table.toStream().to("out", Produced.with(keys, values));
    }
}
