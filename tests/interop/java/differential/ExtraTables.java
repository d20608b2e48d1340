package differential;

import static differential.Helpers.L;
import static differential.Helpers.S;
import static differential.Helpers.cat;
import static differential.Helpers.first;
import static differential.Helpers.fk;
import static differential.Helpers.j;
import static differential.Helpers.kv;
import static differential.Helpers.ms;
import static differential.Helpers.num;
import static differential.Helpers.pl;
import static differential.Helpers.st;
import static differential.Helpers.tb;

import java.util.List;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** More tables: named operators, groups, joins by foreign key, of versioned tables, and in chains; suppression. */
final class ExtraTables {
    private ExtraTables() {}

    static void addTo(Topologies to) {
        addSources(to);
        addOperators(to);
        addForeignKeys(to);
        addJoins(to);
        addSuppressions(to);
    }

    static KTable<String, String> versioned(StreamsBuilder b, String topic, String store, long historyMs) {
        return b.table(topic, Materialized.<String, String>as(Stores.persistentVersionedKeyValueStore(store, ms(historyMs))));
    }

    private static KTable<String, String> inMemory(StreamsBuilder b, String topic, String store) {
        return b.table(topic, Materialized.<String, String>as(Stores.inMemoryKeyValueStore(store)));
    }

    private static void addSources(Topologies to) {
        to.dsl("table_inmem", b -> inMemory(b, "in", "im").toStream().to("out"));
        to.dsl("table_nolog", b -> b.table("in", kv("nl").withLoggingDisabled()).toStream().to("out"));
        to.dsl("table_named", b -> b.table("in", Consumed.<String, String>as("source").withKeySerde(S).withValueSerde(S),
            kv("tn").withCachingDisabled()).toStream(Named.as("ts")).to("out"));
        for (String name : List.of("table_versioned_none", "table_versioned_all")) {
            to.dsl(name, b -> versioned(b, "in", "vt", 200).toStream().to("out"));
        }
        to.dsl("table_plainkv", b ->
            b.table("in", Materialized.<String, String>as(Stores.persistentKeyValueStore("pk"))).toStream().to("out"));
        to.dsl("to_table_named", b -> st(b, "in").toTable(Named.as("tt"), kv("ttm").withCachingDisabled()).toStream().to("out"));
        to.dsl("to_table_unmat", b -> st(b, "in").toTable().filter((k, v) -> v.length() > 2).toStream().to("out"));
        to.dsl("to_table_versioned", b -> st(b, "in")
            .toTable(Materialized.<String, String>as(Stores.persistentVersionedKeyValueStore("tv", ms(200))))
            .mapValues(v -> v + "v").toStream().to("out"));
        to.dsl("to_table_inmem_rekey", b -> st(b, "in").selectKey((k, v) -> first(v, "n"))
            .toTable(Materialized.<String, String>as(Stores.inMemoryKeyValueStore("tm"))).toStream().to("out"));
    }

    private static void addOperators(Topologies to) {
        to.dsl("ktable_named_chain", b -> tb(b, "in").filter((k, v) -> v.length() > 2, Named.as("long"))
            .mapValues(v -> v.toUpperCase(), Named.as("upper"), kv("uppers"))
            .filterNot((k, v) -> v.startsWith("A"), Named.as("not-a")).toStream(Named.as("changes")).to("out"));
        to.dsl("ktable_tostream_rekey", b -> tb(b, "in").toStream((k, v) -> first(v, "n")).groupByKey().count()
            .toStream().to("out", pl()));
        to.dsl("ktable_group_aggregate", b -> tb(b, "in").groupBy((k, v) -> KeyValue.pair(first(v, "n"), v), Grouped.as("gt"))
            .aggregate(() -> "", (k, v, a) -> cat(a, "+" + v), (k, v, a) -> cat(a, "-" + v), Named.as("agg"),
                kv("ga").withValueSerde(S))
            .toStream().to("out"));
        to.dsl("ktable_group_null", b -> tb(b, "in")
            .groupBy((k, v) -> v.startsWith("d") ? KeyValue.pair((String) null, v) : v.startsWith("e")
                ? KeyValue.pair("e", (String) null) : KeyValue.pair(v.substring(0, 1), v))
            .reduce((a, x) -> cat(a, x), (a, x) -> cat(a, "-"), kv("gn")).toStream().to("out"));
        to.dsl("ktable_group_mat", b -> b.table("in", kv("tab")).filter((k, v) -> v.length() > 2, kv("filtered"))
            .groupBy((k, v) -> KeyValue.pair(first(v, "n"), v))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("gc"))).toStream().to("out", pl()));
        to.dsl("ktable_group_inttable", b -> tb(b, "in").mapValues(v -> num(v) % 7)
            .groupBy((k, v) -> KeyValue.pair(v > 3 ? "big" : "small", v), Grouped.with(S, L))
            .reduce((a, x) -> a + x, (a, x) -> a - x,
                Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("sums").withValueSerde(L))
            .toStream().to("out", pl()));
        to.dsl("ktable_transform_chain", b -> b.table("in", kv("tab")).transformValues(Processors.HashTransformer::new)
            .filter((k, v) -> v.length() > 3).groupBy((k, v) -> KeyValue.pair(first(v, "n"), v)).count()
            .toStream().to("out", pl()));
        to.dsl("ktable_group_sources_all", b -> b.table("in", kv("src")).groupBy((k, v) -> KeyValue.pair(first(v, "n"), v))
            .reduce((a, x) -> cat(a, x), (a, x) -> cat(a, "-" + x)).toStream().to("out"));
    }

    private static void addForeignKeys(Topologies to) {
        to.dsl("fk_left_named", b -> tb(b, "in1").leftJoin(tb(b, "in2"), Helpers::fk, (l, r) -> j(l, r), TableJoined.as("fkj"),
            kv("fkout")).toStream().to("out"));
        to.dsl("fk_inner_mat", b -> b.table("in1", kv("left")).join(b.table("in2", kv("right")), Helpers::fk,
            (l, r) -> j(l, r), kv("fkm")).filter((k, v) -> v.length() > 5).toStream().to("out"));
        to.dsl("fk_with_key", b -> tb(b, "in1").leftJoin(tb(b, "in2"), (k, v) -> k.equals("k1") ? "a" : fk(v),
            (l, r) -> j(l, r)).toStream().to("out"));
        to.dsl("fk_all", b -> tb(b, "in1").join(tb(b, "in2"), Helpers::fk, (l, r) -> j(l, r)).toStream().to("out"));
        to.dsl("fk_versioned", b -> versioned(b, "in1", "vl", 300)
            .leftJoin(versioned(b, "in2", "vr", 300), Helpers::fk, (l, r) -> j(l, r)).toStream().to("out"));
        to.dsl("fk_chain", b -> tb(b, "in1").filter((k, v) -> !v.startsWith("e"))
            .leftJoin(tb(b, "in2").mapValues(v -> v.toUpperCase()), Helpers::fk, (l, r) -> j(l, r))
            .groupBy((k, v) -> KeyValue.pair(v.substring(0, 1), v)).count().toStream().to("out", pl()));
        to.dsl("fk_inmem", b -> inMemory(b, "in1", "il").join(inMemory(b, "in2", "ir"), Helpers::fk, (l, r) -> j(l, r),
            Materialized.<String, String>as(Stores.inMemoryKeyValueStore("io"))).toStream().to("out"));
        to.dsl("fk_self", b -> {
            KTable<String, String> table = b.table("in1", kv("me"));
            table.leftJoin(table, v -> v.startsWith("a") ? "k1" : "k2", (l, r) -> j(l, r)).toStream().to("out");
        });
    }

    private static void addJoins(Topologies to) {
        to.dsl("tt_inner_mat", b -> tb(b, "in1").join(tb(b, "in2"), (l, r) -> j(l, r), Named.as("ij"), kv("joined"))
            .toStream().to("out"));
        to.dsl("tt_left_inmem", b -> inMemory(b, "in1", "l").leftJoin(inMemory(b, "in2", "r"), (l, r) -> j(l, r),
            Materialized.<String, String>as(Stores.inMemoryKeyValueStore("o")).withCachingDisabled()).toStream().to("out"));
        to.dsl("tt_null_joiner", b -> tb(b, "in1").outerJoin(tb(b, "in2"),
            (l, r) -> l == null || r == null ? null : j(l, r), kv("nj")).toStream().to("out"));
        to.dsl("tt_self", b -> {
            KTable<String, String> table = tb(b, "in");
            table.join(table, (l, r) -> j(l, r)).toStream().to("out");
            table.leftJoin(table.filter((k, v) -> v.startsWith("b")), (l, r) -> j(l, r)).toStream().to("out2");
        });
        to.dsl("tt_chain", b -> {
            KTable<String, String> one = tb(b, "in1");
            KTable<String, String> two = tb(b, "in2");
            one.join(two, (l, r) -> j(l, r)).leftJoin(tb(b, "in3"), (l, r) -> j(l, r)).outerJoin(one, (l, r) -> cat(l, r))
                .toStream().to("out");
        });
        to.dsl("tt_aggregates", b -> st(b, "in1").groupByKey().count()
            .outerJoin(st(b, "in2").groupByKey().reduce((a, x) -> cat(a, x)), (l, r) -> l + "/" + r).toStream().to("out"));
        to.dsl("tt_versioned_inner", b -> versioned(b, "in1", "v1", 200)
            .join(versioned(b, "in2", "v2", 200), (l, r) -> j(l, r)).toStream().to("out"));
        to.dsl("tt_versioned_left", b -> versioned(b, "in1", "v1", 200).leftJoin(tb(b, "in2"), (l, r) -> j(l, r), kv("vj"))
            .toStream().to("out"));
        to.dsl("tt_versioned_outer", b -> tb(b, "in1").outerJoin(versioned(b, "in2", "v2", 200), (l, r) -> j(l, r))
            .groupBy((k, v) -> KeyValue.pair(v.substring(0, 1), v)).count().toStream().to("out", pl()));
        to.dsl("tt_left_sends_old", b -> tb(b, "in1").leftJoin(tb(b, "in2"), (l, r) -> j(l, r))
            .groupBy((k, v) -> KeyValue.pair(v.substring(0, 1), v))
            .reduce((a, x) -> cat(a, "+" + x), (a, x) -> cat(a, "-" + x)).toStream().to("out"));
        for (String name : List.of("tt_rekeyed_none", "tt_rekeyed_all")) {
            to.dsl(name, b -> st(b, "in1").selectKey((k, v) -> first(v, "n")).toTable()
                .outerJoin(st(b, "in2").groupBy((k, v) -> first(v, "n")).reduce((a, x) -> cat(a, x)), (l, r) -> j(l, r))
                .toStream().to("out"));
        }
        to.dsl("versioned_chain", b -> {
            KTable<String, String> table = versioned(b, "in", "vt", 300);
            table.mapValues(v -> v + "m", kv("vm")).toStream().to("out");
            table.filter((k, v) -> v.length() > 2,
                Materialized.<String, String>as(Stores.persistentVersionedKeyValueStore("vf", ms(100)))).toStream().to("out2");
            table.groupBy((k, v) -> KeyValue.pair(first(v, "n"), v))
                .reduce((a, x) -> cat(a, x), (a, x) -> cat(a, "-")).toStream().to("out3");
        });
    }

    private static void addSuppressions(Topologies to) {
        to.dsl("suppress_maxbytes", b -> tb(b, "in")
            .suppress(Suppressed.untilTimeLimit(ms(500), BufferConfig.maxBytes(300))).toStream().to("out"));
        to.dsl("suppress_both_limits", b -> b.table("in", kv("tab"))
            .suppress(Suppressed.untilTimeLimit(ms(200), BufferConfig.maxRecords(4).withMaxBytes(400).emitEarlyWhenFull()))
            .filter((k, v) -> v.length() > 2, kv("kept")).toStream().to("out"));
        to.dsl("suppress_zero", b -> tb(b, "in").suppress(Suppressed.untilTimeLimit(ms(0), BufferConfig.unbounded()))
            .toStream().to("out"));
        to.dsl("suppress_nolog", b -> tb(b, "in")
            .suppress(Suppressed.untilTimeLimit(ms(100), BufferConfig.unbounded().withLoggingDisabled())).toStream().to("out"));
        to.dsl("suppress_grouped", b -> tb(b, "in").suppress(Suppressed.untilTimeLimit(ms(60), BufferConfig.maxRecords(3)))
            .groupBy((k, v) -> KeyValue.pair(v.substring(0, 1), v)).count().toStream().to("out", pl()));
        to.dsl("suppress_joined", b -> tb(b, "in1").suppress(Suppressed.untilTimeLimit(ms(50), BufferConfig.unbounded()))
            .leftJoin(tb(b, "in2"), (l, r) -> j(l, r)).toStream().to("out"));
        to.dsl("suppress_shutdown", b -> st(b, "in").groupByKey().reduce((a, x) -> cat(a, x))
            .suppress(Suppressed.untilTimeLimit(ms(300), BufferConfig.maxRecords(2).shutDownWhenFull())).toStream().to("out"));
    }
}
