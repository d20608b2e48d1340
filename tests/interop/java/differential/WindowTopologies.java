package differential;

import static differential.Helpers.L;
import static differential.Helpers.S;
import static differential.Helpers.cat;
import static differential.Helpers.ms;
import static differential.Helpers.pl;
import static differential.Helpers.sess;
import static differential.Helpers.sout;
import static differential.Helpers.st;
import static differential.Helpers.tb;
import static differential.Helpers.wout;
import static differential.Helpers.ws;

import java.util.List;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;

/** Windows: tumbling, hopping, sliding, sessions, emit on close, suppression. */
final class WindowTopologies {
    private static final TimeWindows TUMBLING = TimeWindows.ofSizeAndGrace(ms(100), ms(50));
    private static final EmitStrategy CLOSE = EmitStrategy.onWindowClose();

    private WindowTopologies() {}

    static void addTo(Topologies to) {
        addWindows(to);
        addEmitOnClose(to);
        addSuppressions(to);
    }

    private static KGroupedStream<String, String> grouped(StreamsBuilder b) {
        return st(b, "in").groupByKey();
    }

    private static void addWindows(Topologies to) {
        to.dsl("win_tumbling", b -> wout(grouped(b).windowedBy(TUMBLING).count(), 100, L));
        to.dsl("win_tumbling_ret", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeWithNoGrace(ms(100)))
                .reduce((a, x) -> cat(a, x), ws("w").withRetention(ms(300)).withCachingDisabled()),
            100, S));
        to.dsl("win_hopping", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(60)).advanceBy(ms(30)))
                .aggregate(() -> "", (k, v, a) -> cat(a, v), Materialized.with(S, S)),
            100, S));
        to.dsl("win_sliding", b -> wout(
            grouped(b).windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(50), ms(100)))
                .aggregate(() -> "", (k, v, a) -> cat(a, v), ws("sl").withValueSerde(S)),
            50, S));
        to.dsl("win_session", b -> sout(
            grouped(b).windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(40), ms(80))).count(), L));
        to.dsl("win_session_agg", b -> sout(
            grouped(b).windowedBy(SessionWindows.ofInactivityGapWithNoGrace(ms(40)))
                .aggregate(() -> "", (k, v, a) -> cat(a, v), (k, x, y) -> cat(x, y),
                    sess("sess").withValueSerde(S).withCachingDisabled()),
            S));
        to.dsl("win_keychange", b -> st(b, "in").groupBy((k, v) -> v, Grouped.<String, String>as("gv"))
            .windowedBy(TimeWindows.ofSizeWithNoGrace(ms(100))).count(Materialized.as("wk"))
            .toStream((w, v) -> w.key() + "@" + w.window().start()).to("out", pl()));
    }

    private static void addEmitOnClose(Topologies to) {
        for (String name : List.of("emit_tumbling", "emit_tumbling_interval")) {
            to.dsl(name, b -> wout(grouped(b).windowedBy(TUMBLING).emitStrategy(CLOSE).count(), 100, L));
        }
        to.dsl("emit_hopping", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(20)).advanceBy(ms(40))).emitStrategy(CLOSE)
                .aggregate(() -> "", (k, v, a) -> cat(a, v), Materialized.with(S, S)),
            100, S));
        to.dsl("emit_session", b -> sout(
            grouped(b).windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(40), ms(30))).emitStrategy(CLOSE).count(), L));
    }

    private static KTable<Windowed<String>, Long> counts(StreamsBuilder b) {
        return st(b, "in").groupByKey(Grouped.with(S, S)).windowedBy(TUMBLING).count();
    }

    private static void addSuppressions(Topologies to) {
        to.dsl("suppress_window", b ->
            wout(counts(b).suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded())), 100, L));
        to.dsl("suppress_window_defaultserde", b -> wout(
            grouped(b).windowedBy(TUMBLING).count().suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded())), 100, L));
        to.dsl("suppress_session", b -> sout(
            st(b, "in").groupByKey(Grouped.with(S, S))
                .windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(40), ms(20))).count()
                .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()).withName("sup")),
            L));
        to.dsl("suppress_window_shutdown", b -> wout(
            counts(b).suppress(Suppressed.untilWindowCloses(BufferConfig.maxRecords(3).shutDownWhenFull())), 100, L));
        to.dsl("suppress_time", b -> grouped(b).count()
            .suppress(Suppressed.untilTimeLimit(ms(80), BufferConfig.unbounded())).toStream().to("out", pl()));
        to.dsl("suppress_maxrecords", b -> tb(b, "in")
            .suppress(Suppressed.<String>untilTimeLimit(ms(1000), BufferConfig.maxRecords(3)).withName("s3"))
            .mapValues(v -> v.toUpperCase()).toStream().to("out"));
    }
}
