package differential;

import static differential.Helpers.first;
import static differential.Helpers.j;
import static differential.Helpers.kv;
import static differential.Helpers.ms;
import static differential.Helpers.pl;
import static differential.Helpers.st;
import static differential.Helpers.tb;

import java.util.List;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/** Joins of streams with streams, tables and global tables. */
final class JoinTopologies {
    static final JoinWindows WINDOWS = JoinWindows.ofTimeDifferenceAndGrace(ms(50), ms(30));

    private JoinTopologies() {}

    static void addTo(Topologies to) {
        addTables(to);
        to.dsl("ss_inner", b -> st(b, "in1").join(st(b, "in2"), (l, r) -> j(l, r), WINDOWS).to("out"));
        to.dsl("ss_left", b -> st(b, "in1").leftJoin(st(b, "in2"), (l, r) -> j(l, r), WINDOWS).to("out"));
        for (String name : List.of("ss_outer", "ss_outer_interval")) {
            to.dsl(name, b -> st(b, "in1").outerJoin(st(b, "in2"), (l, r) -> j(l, r), WINDOWS).to("out"));
        }
        for (String name : List.of("ss_self_none", "ss_self_all")) {
            to.dsl(name, b -> {
                KStream<String, String> stream = st(b, "in1");
                stream.join(stream, (l, r) -> j(l, r), WINDOWS).to("out");
            });
        }
        to.dsl("ss_inner_rekey", b -> st(b, "in1").selectKey((k, v) -> first(v, "n"))
            .join(st(b, "in2").map((k, v) -> KeyValue.pair(first(v, "n"), v)), (l, r) -> j(l, r),
                JoinWindows.ofTimeDifferenceWithNoGrace(ms(50)))
            .groupByKey().count().toStream().to("out", pl()));
        to.dsl("opt_reparts_join_none", JoinTopologies::repartitions);
        to.dsl("opt_reparts_join_all", JoinTopologies::repartitions);
    }

    private static void addTables(Topologies to) {
        to.dsl("stream_table_inner", b -> st(b, "in1").join(tb(b, "in2"), (l, r) -> j(l, r)).to("out"));
        to.dsl("stream_table_left_rekey", b -> st(b, "in1").selectKey((k, v) -> first(v, null))
            .leftJoin(tb(b, "in2"), (k, l, r) -> k + ":" + j(l, r), Joined.<String, String, String>as("jn")).to("out"));
        to.dsl("stream_table_versioned", b -> st(b, "in1")
            .leftJoin(b.table("in2", Materialized.<String, String>as(Stores.persistentVersionedKeyValueStore("vt", ms(150)))),
                (l, r) -> j(l, r))
            .to("out"));
        to.dsl("stream_global_inner", b -> st(b, "in1")
            .join(b.globalTable("g", kv("gs")), (k, v) -> first(v, null), (l, r) -> j(l, r)).to("out"));
        to.dsl("stream_global_left", b -> st(b, "in1")
            .leftJoin(b.<String, String>globalTable("g"), (k, v) -> first(v, null), (k, l, r) -> k + ":" + j(l, r)).to("out"));
    }

    private static void repartitions(StreamsBuilder b) {
        KStream<String, String> stream = st(b, "in1").selectKey((k, v) -> v == null ? "n" : v).mapValues(v -> v + "m");
        KTable<String, Long> counts = stream.groupByKey().count(Materialized.as("c"));
        stream.leftJoin(counts, (v, c) -> v + "/" + c).to("out");
        stream.join(st(b, "in2"), (l, r) -> j(l, r), JoinWindows.ofTimeDifferenceWithNoGrace(ms(100))).to("out2");
    }
}
