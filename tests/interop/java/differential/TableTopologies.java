package differential;

import static differential.Helpers.L;
import static differential.Helpers.S;
import static differential.Helpers.first;
import static differential.Helpers.j;
import static differential.Helpers.kv;
import static differential.Helpers.ms;
import static differential.Helpers.num;
import static differential.Helpers.pl;
import static differential.Helpers.st;
import static differential.Helpers.tb;

import java.util.List;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.state.Stores;

/** Tables: sources, stateless operators, grouping, joins of tables, foreign keys, versions. */
final class TableTopologies {
    private TableTopologies() {}

    static void addTo(Topologies to) {
        addSources(to);
        addJoins(to);
        to.dsl("ktable_filter_mapvalues", b -> {
            KTable<String, String> table = tb(b, "in");
            table.filter((k, v) -> v.length() > 3).mapValues(v -> v.toUpperCase()).toStream().to("out");
            table.filterNot((k, v) -> v.startsWith("a")).toStream().to("out2");
        });
        to.dsl("ktable_filter_mapvalues_mat", b -> b.table("in", kv("tab"))
            .filter((k, v) -> v.length() > 3, kv("f")).mapValues((k, v) -> k + v, kv("m")).toStream().to("out"));
        to.dsl("ktable_transform_values", b -> {
            b.addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("ts"), S, L));
            KTable<String, String> table = b.table("in", kv("tab"));
            table.transformValues(Processors.CountingTransformer::new, "ts").toStream().to("out");
            table.transformValues(Processors.HashTransformer::new, kv("mat")).toStream().to("out2");
        });
        to.dsl("ktable_group_count", b ->
            tb(b, "in").groupBy((k, v) -> KeyValue.pair(v.substring(0, 1), v)).count().toStream().to("out", pl()));
        to.dsl("ktable_group_reduce", b -> tb(b, "in").groupBy((k, v) -> KeyValue.pair("" + Math.abs(num(v)) % 3, v))
            .reduce((a, x) -> "" + (num(a) + num(x)), (a, x) -> "" + (num(a) - num(x))).toStream().to("out"));
        to.dsl("versioned_table_ops", b -> {
            KTable<String, String> table =
                b.table("in", Materialized.<String, String>as(Stores.persistentVersionedKeyValueStore("vt", ms(500))));
            table.filter((k, v) -> v.length() > 3).toStream().to("out");
            table.groupBy((k, v) -> KeyValue.pair(v.substring(0, 1), v)).count().toStream().to("out2", pl());
        });
    }

    private static void addSources(Topologies to) {
        for (String name : List.of("table_source_none", "table_source_all")) {
            to.dsl(name, b -> b.table("in", kv("tab")).toStream().to("out"));
        }
        to.dsl("table_source_unmat", b -> tb(b, "in").toStream().to("out"));
        to.dsl("to_table", b -> st(b, "in").filter((k, v) -> v == null || !v.startsWith("x")).toTable(kv("tt"))
            .mapValues(v -> "" + v.length()).toStream().to("out"));
        to.dsl("to_table_rekey", b -> st(b, "in").selectKey((k, v) -> first(v, "n")).toTable()
            .join(tb(b, "in2"), (l, r) -> j(l, r)).toStream().to("out"));
    }

    private static void addJoins(Topologies to) {
        to.dsl("tt_inner", b -> tb(b, "in1").join(tb(b, "in2"), (l, r) -> j(l, r)).toStream().to("out"));
        to.dsl("tt_left", b -> tb(b, "in1").leftJoin(tb(b, "in2"), (l, r) -> j(l, r)).toStream().to("out"));
        to.dsl("tt_outer", b -> tb(b, "in1").outerJoin(tb(b, "in2"), (l, r) -> j(l, r)).toStream().to("out"));
        to.dsl("tt_outer_mat", b -> tb(b, "in1").filter((k, v) -> v.length() > 3)
            .outerJoin(tb(b, "in2").filterNot((k, v) -> v.startsWith("c")), (l, r) -> j(l, r), Named.as("oj"), kv("joined"))
            .toStream().to("out"));
        to.dsl("fk_inner", b -> tb(b, "in1").join(tb(b, "in2"), Helpers::fk, (l, r) -> j(l, r)).toStream().to("out"));
        to.dsl("fk_left", b -> tb(b, "in1").leftJoin(tb(b, "in2"), Helpers::fk, (l, r) -> j(l, r)).toStream().to("out"));
    }
}
