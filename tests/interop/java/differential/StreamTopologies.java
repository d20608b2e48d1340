package differential;

import static differential.Helpers.L;
import static differential.Helpers.S;
import static differential.Helpers.cat;
import static differential.Helpers.kv;
import static differential.Helpers.ms;
import static differential.Helpers.num;
import static differential.Helpers.pl;
import static differential.Helpers.st;
import static differential.Helpers.wout;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.CogroupedKStream;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.UsePartitionTimeOnInvalidTimestamp;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** Streams: stateless operators, aggregations, user code, errors and timestamps. */
final class StreamTopologies {
    private StreamTopologies() {}

    static void addTo(Topologies to) {
        addStateless(to);
        addAggregations(to);
        addErrorsAndTimestamps(to);
        to.dsl("dsl_process_dedup", b ->
            st(b, "in").process(new Processors.DedupSupplier()).groupByKey().count().toStream().to("out", pl()));
        to.dsl("dsl_process_values", b -> {
            b.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("n"), S, L));
            st(b, "in").processValues(Processors.Numbering::new, "n").peek((k, v) -> { })
                .groupByKey().count().toStream().to("out", pl());
        });
    }

    private static void addStateless(Topologies to) {
        to.dsl("stateless_chain", b -> st(b, "in")
            .filter((k, v) -> v != null && v.length() > 2)
            .filterNot((k, v) -> v.startsWith("x"))
            .mapValues(v -> v.toUpperCase())
            .map((k, v) -> KeyValue.pair(v.substring(0, 1), v + ":" + k))
            .flatMap((k, v) -> List.of(KeyValue.pair(k, v), KeyValue.pair(k + k, v.toLowerCase())))
            .peek((k, v) -> { })
            .flatMapValues(v -> List.of(v, v + "!"))
            .selectKey((k, v) -> k + v.length())
            .to("out"));
        to.dsl("stateless_named", b -> b.stream("in", Consumed.<String, String>as("src"))
            .filter((k, v) -> v != null, Named.as("keep"))
            .mapValues(v -> v.toUpperCase(), Named.as("up"))
            .selectKey((k, v) -> v.substring(0, 1), Named.as("rekey"))
            .flatMapValues(v -> List.of(v, v + v), Named.as("split"))
            .to("out", Produced.<String, String>as("snk")));
        to.dsl("split_branch", b -> {
            Map<String, KStream<String, String>> branches = st(b, "in").split(Named.as("sp-"))
                .branch((k, v) -> v != null && v.startsWith("a"), Branched.as("a"))
                .branch((k, v) -> v != null && v.length() > 3, Branched.withConsumer(s -> s.to("out-b")))
                .branch((k, v) -> "k1".equals(k), Branched.as("k1"))
                .defaultBranch(Branched.as("rest"));
            branches.get("sp-a").to("out-a");
            branches.get("sp-k1").mapValues(v -> v + "1").to("out-k");
            branches.get("sp-rest").to("out-rest");
        });
        to.dsl("split_nodefault", b -> {
            Map<String, KStream<String, String>> branches = st(b, "in").filter((k, v) -> v != null).split()
                .branch((k, v) -> v.startsWith("a"))
                .branch((k, v) -> v.startsWith("b"), Branched.withFunction(s -> s.mapValues(v -> v.toUpperCase())))
                .noDefaultBranch();
            KStream<String, String> merged = null;
            for (KStream<String, String> branch : new TreeMap<>(branches).values()) {
                merged = merged == null ? branch : merged.merge(branch);
            }
            merged.to("out");
        });
        to.dsl("merge3", b -> st(b, "in1").merge(st(b, "in2")).merge(b.stream(List.of("in3", "in4")))
            .mapValues(v -> v + ".").to("out"));
        to.dsl("dynamic_topic", b -> {
            KStream<String, String> stream = st(b, "in");
            stream.to((k, v, context) -> "out-" + (v == null ? "null" : v.substring(0, 1)));
            stream.foreach((k, v) -> { });
        });
        to.dsl("repartition_ops", b -> st(b, "in").repartition()
            .mapValues(v -> v == null ? null : v.toUpperCase())
            .repartition(Repartitioned.<String, String>as("rp").withNumberOfPartitions(3)).to("out"));
    }

    private static void addAggregations(Topologies to) {
        for (String name : List.of("count_nokeychange", "count_headers_fmt")) {
            to.dsl(name, b -> st(b, "in").groupByKey().count(Materialized.as("counts")).toStream().to("out", pl()));
        }
        to.dsl("count_keychange", b -> st(b, "in").groupBy((k, v) -> v).count().toStream().to("out", pl()));
        to.dsl("count_named", b -> st(b, "in").groupBy((k, v) -> v, Grouped.<String, String>as("by-value"))
            .count(Named.as("cnt"), Materialized.as("cnt-store")).toStream(Named.as("ts"))
            .to("out", Produced.<String, Long>as("snk").withValueSerde(L)));
        to.dsl("wordcount", b -> st(b, "in")
            .flatMapValues(v -> v == null ? List.<String>of() : Arrays.asList(v.split(" ")))
            .groupBy((k, w) -> w).count().toStream().to("out", pl()));
        to.dsl("reduce", b -> st(b, "in").groupByKey().reduce((a, x) -> cat(a, x), kv("red")).toStream().to("out"));
        to.dsl("aggregate_null", b -> st(b, "in").groupByKey()
            .aggregate(() -> "", StreamTopologies::deleteOnD, Materialized.with(S, S)).toStream().to("out"));
        to.dsl("aggregate_nocache_inmem", b -> st(b, "in").groupByKey()
            .aggregate(() -> "", StreamTopologies::deleteOnD,
                Materialized.<String, String>as(Stores.inMemoryKeyValueStore("agg")).withKeySerde(S).withValueSerde(S)
                    .withCachingDisabled().withLoggingEnabled(Map.of("retention.ms", "1234")))
            .toStream().to("out"));
        to.dsl("count_nologging", b -> st(b, "in").groupByKey()
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("nolog").withLoggingDisabled().withCachingDisabled())
            .toStream().to("out", pl()));
        to.dsl("count_lru", b -> st(b, "in").groupByKey()
            .count(Materialized.<String, Long>as(Stores.lruMap("lru", 3)).withCachingDisabled()).toStream().to("out", pl()));
        to.dsl("count_plainkv", b -> st(b, "in").groupByKey()
            .count(Materialized.<String, Long>as(Stores.persistentKeyValueStore("plain"))).toStream().to("out", pl()));
        for (String name : List.of("two_groupbys_none", "two_groupbys_all")) {
            to.dsl(name, b -> {
                KStream<String, String> stream = st(b, "in").selectKey((k, v) -> v == null ? "none" : v);
                stream.groupByKey().count().toStream().to("out1", pl());
                stream.groupByKey().reduce((a, x) -> cat(a, x)).toStream().to("out2");
            });
        }
        to.dsl("cogroup", b -> cogrouped(b).aggregate(() -> "", Materialized.with(S, S)).toStream().to("out"));
        to.dsl("cogroup_windowed", b -> wout(
            cogrouped(b).windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(20))).aggregate(() -> "", Materialized.with(S, S)),
            100, S));
    }

    private static String deleteOnD(String key, String value, String soFar) {
        return value.startsWith("d") ? null : cat(soFar, value);
    }

    static CogroupedKStream<String, String> cogrouped(StreamsBuilder b) {
        return st(b, "in1").groupByKey().<String>cogroup((k, v, a) -> cat(a, "1" + v))
            .cogroup(st(b, "in2").groupByKey(), (k, v, a) -> cat(a, "2" + v));
    }

    private static void addErrorsAndTimestamps(Topologies to) {
        to.dsl("deser_continue_dlq", b ->
            b.stream("in", Consumed.with(S, L)).filter((k, v) -> v != null && v % 2 == 0).to("out", pl()));
        to.dsl("deser_fail", b -> b.stream("in", Consumed.with(S, L)).to("out", pl()));
        to.dsl("ts_negative_fail", b -> st(b, "in").to("out"));
        to.dsl("ts_negative_skip", b -> st(b, "in").groupByKey().count().toStream().to("out", pl()));
        to.dsl("ts_use_partition_time", b -> wout(
            b.stream("in", Consumed.with(S, S).withTimestampExtractor(new UsePartitionTimeOnInvalidTimestamp()))
                .groupByKey().windowedBy(TimeWindows.ofSizeWithNoGrace(ms(100))).count(),
            100, L));
        to.dsl("ts_from_value", b -> wout(
            b.stream("in", Consumed.with(S, S).withTimestampExtractor((record, partitionTime) ->
                    record.value() == null ? Math.max(0, partitionTime) : 1000 + num((String) record.value()) * 10))
                .groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(1000))).count(),
            100, L));
    }
}
