package differential;

import static differential.Helpers.L;
import static differential.Helpers.S;
import static differential.Helpers.cat;
import static differential.Helpers.ms;
import static differential.Helpers.pl;
import static differential.Helpers.sess;
import static differential.Helpers.sout;
import static differential.Helpers.st;
import static differential.Helpers.wout;
import static differential.Helpers.ws;

import java.time.Duration;
import java.time.Instant;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.UnlimitedWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.Stores;

/** More windows: unlimited, sliding, their stores, emit on close, suppression of final results. */
final class ExtraWindows {
    private static final EmitStrategy CLOSE = EmitStrategy.onWindowClose();

    private ExtraWindows() {}

    static void addTo(Topologies to) {
        addWindows(to);
        addStores(to);
        addFinalResults(to);
    }

    private static KGroupedStream<String, String> grouped(StreamsBuilder b) {
        return st(b, "in").groupByKey(Grouped.with(S, S));
    }

    private static String append(String key, String value, String soFar) {
        return cat(soFar, value);
    }

    private static String appendUnlessDog(String key, String value, String soFar) {
        return "dog".equals(value) ? null : cat(soFar, value);
    }

    private static void addWindows(Topologies to) {
        to.dsl("win_unlimited", b -> wout(
            grouped(b).windowedBy(UnlimitedWindows.of().startOn(Instant.ofEpochMilli(50))).count(), Long.MAX_VALUE, L));
        to.dsl("win_unlimited_reduce", b -> wout(
            grouped(b).windowedBy(UnlimitedWindows.of()).reduce((a, x) -> cat(a, x), Named.as("un"), ws("unl")),
            Long.MAX_VALUE, S));
        to.dsl("win_gaps", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(70), ms(10)).advanceBy(ms(70))).count(Named.as("gaps")), 70, L));
        to.dsl("win_hopping_null", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(90), ms(40)).advanceBy(ms(40)))
                .aggregate(() -> "", ExtraWindows::appendUnlessDog, ws("hn").withValueSerde(S)),
            90, S));
        to.dsl("win_day_grace", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(100), Duration.ofHours(24))).count(), 100, L));
        to.dsl("win_sliding_nograce", b -> wout(
            grouped(b).windowedBy(SlidingWindows.ofTimeDifferenceWithNoGrace(ms(30))).count(), 30, L));
        to.dsl("win_sliding_reduce", b -> wout(
            grouped(b).windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(80), ms(1000)))
                .reduce((a, x) -> cat(a, x), Named.as("slide"), ws("slr").withCachingDisabled()),
            80, S));
        to.dsl("win_sliding_null", b -> wout(
            grouped(b).windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(50), ms(60)))
                .aggregate(() -> "", ExtraWindows::appendUnlessDog, ws("sln").withValueSerde(S).withCachingDisabled()),
            50, S));
        to.dsl("win_session_reduce", b -> sout(
            grouped(b).windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(25), ms(100)))
                .reduce((a, x) -> cat(a, x), Named.as("sr"), sess("srs").withRetention(ms(1000))),
            S));
        to.dsl("win_session_null", b -> sout(
            grouped(b).windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(40), ms(40)))
                .aggregate(() -> "", ExtraWindows::appendUnlessDog, (k, x, y) -> cat(x, y), sess("sn").withValueSerde(S)),
            S));
        to.dsl("win_then_table", b -> {
            KTable<Windowed<String>, Long> counts =
                grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(50))).count(Materialized.as("wc"));
            wout(counts.filter((w, v) -> v > 1).mapValues(v -> v * 10), 100, L);
            counts.groupBy((w, v) -> KeyValue.pair(w.key(), v), Grouped.with(S, L))
                .reduce((a, x) -> a + x, (a, x) -> a - x).toStream().to("out2", pl());
        });
        to.dsl("win_session_then_table", b -> grouped(b)
            .windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(40), ms(40))).count(Materialized.as("sc"))
            .groupBy((w, v) -> KeyValue.pair(w.key(), v), Grouped.with(S, L))
            .reduce((a, x) -> a + x, (a, x) -> a - x).toStream().to("out", pl()));
        to.dsl("win_rekey_named", b -> wout(
            st(b, "in").groupBy((k, v) -> v, Grouped.<String, String>as("byv"))
                .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(60), ms(20))).count(Named.as("slc"), Materialized.as("slcs")),
            60, L));
    }

    private static void addStores(Topologies to) {
        to.dsl("win_inmem_supplier", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(20)))
                .count(Materialized.as(Stores.inMemoryWindowStore("iw", ms(400), ms(100), false))),
            100, L));
        to.dsl("win_plain_supplier", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(20)))
                .reduce((a, x) -> cat(a, x), Materialized.as(Stores.persistentWindowStore("pw", ms(400), ms(100), false))),
            100, S));
        to.dsl("win_session_inmem_supplier", b -> sout(
            grouped(b).windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(30), ms(20)))
                .count(Materialized.as(Stores.inMemorySessionStore("is", ms(300)))),
            L));
        to.dsl("win_nolog", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(20)))
                .reduce((a, x) -> cat(a, x), ws("wn").withLoggingDisabled()),
            100, S));
        to.dsl("win_sliding_inmem_supplier", b -> wout(
            grouped(b).windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(40), ms(30)))
                .reduce((a, x) -> cat(a, x), Materialized.as(Stores.inMemoryWindowStore("isl", ms(300), ms(40), false))),
            40, S));
    }

    private static void addFinalResults(Topologies to) {
        to.dsl("emit_sliding", b -> wout(
            grouped(b).windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(50), ms(40))).emitStrategy(CLOSE)
                .aggregate(() -> "", ExtraWindows::append, Materialized.with(S, S)),
            50, S));
        to.dsl("emit_sliding_interval", b -> wout(
            grouped(b).windowedBy(SlidingWindows.ofTimeDifferenceWithNoGrace(ms(50))).emitStrategy(CLOSE).count(), 50, L));
        to.dsl("emit_session_agg", b -> sout(
            grouped(b).windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(30), ms(50))).emitStrategy(CLOSE)
                .aggregate(() -> "", ExtraWindows::append, (k, x, y) -> cat(x, y), sess("esa").withValueSerde(S)),
            S));
        to.dsl("emit_session_interval", b -> sout(
            grouped(b).windowedBy(SessionWindows.ofInactivityGapWithNoGrace(ms(30))).emitStrategy(CLOSE).count(), L));
        to.dsl("emit_tumbling_ret", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(60), ms(30))).emitStrategy(CLOSE)
                .reduce((a, x) -> cat(a, x), ws("etr").withRetention(ms(1000)).withCachingDisabled()),
            60, S));
        to.dsl("emit_then_count", b -> grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(60), ms(30))).emitStrategy(CLOSE)
            .count().toStream().groupBy((w, v) -> w.key(), Grouped.with(S, L)).count().toStream().to("out", pl()));
        to.dsl("suppress_hopping", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(30)).advanceBy(ms(50)))
                .aggregate(() -> "", ExtraWindows::append, Materialized.with(S, S))
                .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded())),
            100, S));
        to.dsl("suppress_sliding", b -> wout(
            grouped(b).windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(40), ms(20))).count()
                .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()).withName("slsup")),
            40, L));
        to.dsl("suppress_windowed_limit", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(50), ms(30))).count(Materialized.as("swl"))
                .suppress(Suppressed.untilTimeLimit(ms(40), BufferConfig.maxRecords(5))),
            50, L));
        to.dsl("suppress_window_nolog", b -> wout(
            grouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(50), ms(30))).count()
                .suppress(Suppressed.untilWindowCloses(BufferConfig.maxBytes(20_000).shutDownWhenFull().withLoggingDisabled())),
            50, L));
        to.dsl("suppress_session_null", b -> sout(
            grouped(b).windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(40), ms(40)))
                .aggregate(() -> "", ExtraWindows::appendUnlessDog, (k, x, y) -> cat(x, y), sess("ssn").withValueSerde(S))
                .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded())),
            S));
    }
}
