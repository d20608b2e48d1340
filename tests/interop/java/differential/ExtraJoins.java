package differential;

import static differential.ExtraTables.versioned;
import static differential.Helpers.S;
import static differential.Helpers.cat;
import static differential.Helpers.first;
import static differential.Helpers.j;
import static differential.Helpers.kv;
import static differential.Helpers.ms;
import static differential.Helpers.pl;
import static differential.Helpers.st;
import static differential.Helpers.tb;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.Stores;

/** More joins: asymmetric windows, stores of one's own, names, grace periods, chains. */
final class ExtraJoins {
    private ExtraJoins() {}

    static void addTo(Topologies to) {
        addWindows(to);
        addStores(to);
        addShapes(to);
        addTables(to);
    }

    private static JoinWindows windows(long before, long after, long grace) {
        return JoinWindows.ofTimeDifferenceAndGrace(ms(50), ms(grace)).before(ms(before)).after(ms(after));
    }

    private static void addWindows(Topologies to) {
        to.dsl("ss_inner_asym", b -> st(b, "in1").join(st(b, "in2"), (l, r) -> j(l, r), windows(10, 80, 20)).to("out"));
        to.dsl("ss_inner_future", b -> st(b, "in1").join(st(b, "in2"), (l, r) -> j(l, r), windows(-10, 60, 0)).to("out"));
        to.dsl("ss_left_before", b -> st(b, "in1").leftJoin(st(b, "in2"), (l, r) -> j(l, r), windows(60, 0, 20)).to("out"));
        to.dsl("ss_left_after", b -> st(b, "in1").leftJoin(st(b, "in2"), (l, r) -> j(l, r), windows(0, 60, 20)).to("out"));
        to.dsl("ss_outer_asym", b -> st(b, "in1").outerJoin(st(b, "in2"), (l, r) -> j(l, r), windows(20, 70, 10)).to("out"));
        to.dsl("ss_outer_past", b -> st(b, "in1").outerJoin(st(b, "in2"), (l, r) -> j(l, r), windows(70, -20, 10)).to("out"));
        to.dsl("ss_outer_nograce", b -> st(b, "in1").outerJoin(st(b, "in2"), (l, r) -> j(l, r),
            JoinWindows.ofTimeDifferenceWithNoGrace(ms(40))).to("out"));
        to.dsl("ss_left_zero", b -> st(b, "in1").leftJoin(st(b, "in2"), (l, r) -> j(l, r),
            JoinWindows.ofTimeDifferenceWithNoGrace(ms(0))).to("out"));
        to.dsl("ss_left_day", b -> st(b, "in1").leftJoin(st(b, "in2"), (l, r) -> j(l, r),
            JoinWindows.ofTimeDifferenceAndGrace(ms(30), Duration.ofHours(24))).to("out"));
        to.dsl("ss_left_interval", b -> st(b, "in1").leftJoin(st(b, "in2"), (l, r) -> j(l, r), JoinTopologies.WINDOWS).to("out"));
    }

    private static void addStores(Topologies to) {
        to.dsl("ss_named", b -> st(b, "in1").leftJoin(st(b, "in2"), (l, r) -> j(l, r), JoinTopologies.WINDOWS,
            StreamJoined.with(S, S, S).withName("sj").withStoreName("sjs")).to("out"));
        to.dsl("ss_outer_named", b -> st(b, "in1").outerJoin(st(b, "in2"), (l, r) -> j(l, r), JoinTopologies.WINDOWS,
            StreamJoined.<String, String, String>as("ojs").withName("oj")).to("out"));
        to.dsl("ss_suppliers", b -> st(b, "in1").join(st(b, "in2"), (l, r) -> j(l, r), JoinTopologies.WINDOWS,
            StreamJoined.<String, String, String>with(
                Stores.inMemoryWindowStore("this", ms(130), ms(100), true),
                Stores.persistentWindowStore("that", ms(130), ms(100), true))).to("out"));
        to.dsl("ss_left_suppliers", b -> st(b, "in1").leftJoin(st(b, "in2"), (l, r) -> j(l, r), JoinTopologies.WINDOWS,
            StreamJoined.<String, String, String>with(
                Stores.inMemoryWindowStore("this", ms(130), ms(100), true),
                Stores.inMemoryWindowStore("that", ms(130), ms(100), true))).to("out"));
        to.dsl("ss_suppliers_nolog", b -> st(b, "in1").join(st(b, "in2"), (l, r) -> j(l, r), JoinTopologies.WINDOWS,
            StreamJoined.<String, String, String>with(
                Stores.inMemoryWindowStore("this", ms(130), ms(100), true),
                Stores.inMemoryWindowStore("that", ms(130), ms(100), true)).withLoggingDisabled()).to("out"));
        to.dsl("ss_suppliers_logged", b -> st(b, "in1").join(st(b, "in2"), (l, r) -> j(l, r), JoinTopologies.WINDOWS,
            StreamJoined.<String, String, String>with(
                Stores.inMemoryWindowStore("this", ms(130), ms(100), true),
                Stores.inMemoryWindowStore("that", ms(130), ms(100), true)).withLoggingEnabled(Map.of("segment.ms", "77")))
            .to("out"));
        to.dsl("ss_logged", b -> st(b, "in1").outerJoin(st(b, "in2"), (l, r) -> j(l, r), JoinTopologies.WINDOWS,
            StreamJoined.with(S, S, S).withLoggingEnabled(Map.of("segment.ms", "77", "cleanup.policy", "compact"))).to("out"));
        to.dsl("ss_outer_nolog", b -> st(b, "in1").outerJoin(st(b, "in2"), (l, r) -> j(l, r), JoinTopologies.WINDOWS,
            StreamJoined.with(S, S, S).withLoggingDisabled()).to("out"));
    }

    private static void addShapes(Topologies to) {
        to.dsl("ss_key_joiner", b -> st(b, "in1").outerJoin(st(b, "in2"), (k, l, r) -> k + ":" + j(l, r), JoinTopologies.WINDOWS)
            .to("out"));
        for (String name : List.of("ss_left_self_none", "ss_left_self_all")) {
            to.dsl(name, b -> {
                KStream<String, String> stream = st(b, "in1");
                stream.leftJoin(stream, (l, r) -> j(l, r), JoinTopologies.WINDOWS).to("out");
            });
        }
        to.dsl("ss_outer_self", b -> {
            KStream<String, String> stream = st(b, "in1");
            stream.outerJoin(stream.filter((k, v) -> v != null && v.startsWith("b")), (l, r) -> j(l, r), JoinTopologies.WINDOWS)
                .to("out");
        });
        for (String name : List.of("ss_self_rekey_none", "ss_self_rekey_all")) {
            to.dsl(name, b -> {
                KStream<String, String> stream = st(b, "in1").selectKey((k, v) -> first(v, "n"));
                stream.join(stream, (l, r) -> j(l, r), JoinWindows.ofTimeDifferenceAndGrace(ms(30), ms(10))).to("out");
            });
        }
        to.dsl("ss_self_asym_all", b -> {
            KStream<String, String> stream = st(b, "in1");
            stream.join(stream, (k, l, r) -> k + j(l, r), windows(20, 5, 15)).to("out");
        });
        to.dsl("ss_three", b -> st(b, "in1").join(st(b, "in2"), (l, r) -> j(l, r), JoinTopologies.WINDOWS)
            .leftJoin(st(b, "in3"), (l, r) -> j(l, r), JoinTopologies.WINDOWS).to("out"));
        to.dsl("ss_outer_rekey", b -> st(b, "in1").selectKey((k, v) -> first(v, null))
            .outerJoin(st(b, "in2").selectKey((k, v) -> first(v, null)), (l, r) -> j(l, r),
                JoinWindows.ofTimeDifferenceAndGrace(ms(20), ms(20)), StreamJoined.<String, String, String>as("rk"))
            .groupByKey().count().toStream().to("out", pl()));
        to.dsl("ss_from_tables", b -> tb(b, "in1").toStream().join(tb(b, "in2").toStream(), (l, r) -> j(l, r),
            JoinTopologies.WINDOWS).to("out"));
        to.dsl("ss_window_count", b -> {
            KStream<String, String> one = st(b, "in1").mapValues(v -> v == null ? null : v.toUpperCase());
            one.outerJoin(st(b, "in2").filter((k, v) -> v != null), (l, r) -> j(l, r), JoinTopologies.WINDOWS)
                .groupByKey().reduce((a, x) -> cat(a, x)).toStream().to("out");
        });
    }

    private static void addTables(Topologies to) {
        to.dsl("st_left", b -> st(b, "in1").leftJoin(tb(b, "in2"), (l, r) -> j(l, r)).to("out"));
        to.dsl("st_named", b -> st(b, "in1").join(tb(b, "in2"), (k, l, r) -> k + j(l, r), Joined.with(S, S, S, "stj")).to("out"));
        to.dsl("st_own_aggregate", b -> {
            KStream<String, String> stream = st(b, "in");
            stream.leftJoin(stream.groupByKey().count(), (l, r) -> l + "/" + r).to("out");
        });
        to.dsl("st_unmat_chain", b -> st(b, "in1").join(
            tb(b, "in2").filter((k, v) -> v.length() > 2).mapValues(v -> v.toUpperCase()), (l, r) -> j(l, r)).to("out"));
        to.dsl("st_grace", b -> st(b, "in1").join(versioned(b, "in2", "vt", 300), (l, r) -> j(l, r),
            Joined.<String, String, String>as("gj").withGracePeriod(ms(60))).to("out"));
        to.dsl("st_grace_left", b -> st(b, "in1").leftJoin(versioned(b, "in2", "vt", 300), (l, r) -> j(l, r),
            Joined.<String, String, String>with(S, S, S).withGracePeriod(ms(100))).to("out"));
        to.dsl("st_grace_zero", b -> st(b, "in1").leftJoin(versioned(b, "in2", "vt", 300), (l, r) -> j(l, r),
            Joined.<String, String, String>as("z").withGracePeriod(ms(0))).to("out"));
        to.dsl("st_grace_rekey", b -> st(b, "in1").selectKey((k, v) -> first(v, null))
            .leftJoin(versioned(b, "in2", "vt", 200), (l, r) -> j(l, r),
                Joined.<String, String, String>as("gr").withGracePeriod(ms(40))).to("out"));
        to.dsl("st_versioned_inner", b -> st(b, "in1").join(versioned(b, "in2", "vt", 100), (l, r) -> j(l, r)).to("out"));
        for (String name : List.of("st_same_topic_none", "st_same_topic_all")) {
            to.dsl(name, b -> st(b, "in1").leftJoin(b.table("in2", kv("t")), (l, r) -> j(l, r)).to("out"));
        }
        to.dsl("global_named", b -> st(b, "in1").leftJoin(b.globalTable("g", kv("gt")), (k, v) -> first(v, "n"),
            (l, r) -> j(l, r), Named.as("glj")).to("out"));
        to.dsl("global_inmem", b -> st(b, "in1").join(
            b.globalTable("g", Materialized.<String, String>as(Stores.inMemoryKeyValueStore("gi"))), (k, v) -> k,
            (k, l, r) -> k + j(l, r)).to("out"));
        to.dsl("global_two", b -> {
            KStream<String, String> stream = st(b, "in1");
            stream.join(b.<String, String>globalTable("g"), (k, v) -> first(v, null), (l, r) -> j(l, r))
                .leftJoin(b.<String, String>globalTable("g2"), (k, v) -> k, (l, r) -> j(l, r)).to("out");
        });
        to.dsl("global_from_table", b -> tb(b, "in1").toStream()
            .join(b.<String, String>globalTable("g"), (k, v) -> first(v, null), (l, r) -> j(l, r))
            .groupByKey().count().toStream().to("out", pl()));
        to.dsl("global_store_dsl", b -> {
            b.addGlobalStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("gs"), S, S).withLoggingDisabled(),
                "g", org.apache.kafka.streams.kstream.Consumed.with(S, S), Processors.GlobProc::new);
            st(b, "in").process(Processors.GlobGet::new).to("out");
        });
        to.dsl("joins_mixed", b -> st(b, "in1").map((k, v) -> KeyValue.pair(first(v, null), v))
            .join(tb(b, "in2"), (l, r) -> j(l, r)).leftJoin(b.<String, String>globalTable("g"), (k, v) -> k, (l, r) -> j(l, r))
            .groupByKey().reduce((a, x) -> cat(a, x)).toStream().to("out"));
    }
}
