package differential;

import static differential.Helpers.L;
import static differential.Helpers.S;
import static differential.Helpers.cat;
import static differential.Helpers.first;
import static differential.Helpers.kv;
import static differential.Helpers.ms;
import static differential.Helpers.pl;
import static differential.Helpers.sess;
import static differential.Helpers.sout;
import static differential.Helpers.st;
import static differential.Helpers.tb;
import static differential.Helpers.wout;
import static differential.Helpers.ws;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.regex.Pattern;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Printed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.StreamPartitioner;
import org.apache.kafka.streams.state.Stores;

/** More streams: repartitioning, merged repartition topics, partitioners, cogroups, failing user code. */
final class ExtraStreams {
    private ExtraStreams() {}

    static void addTo(Topologies to) {
        addStateless(to);
        addRepartitions(to);
        addCogroups(to);
        addUserCode(to);
    }

    private static void addStateless(Topologies to) {
        to.dsl("multicast", b -> st(b, "in").to("out", Produced.streamPartitioner(new SomeOrNone())));
        to.dsl("print_named", b -> {
            KStream<String, String> stream = st(b, "in");
            stream.print(Printed.toSysOut());
            stream.print(Printed.<String, String>toSysOut().withLabel("l").withName("printer"));
            stream.foreach((k, v) -> { }, Named.as("each"));
        });
        to.dsl("pattern_source", b ->
            b.<String, String>stream(Pattern.compile("in[0-9]")).mapValues(v -> v + "+").to("out"));
        to.dsl("same_source_twice", b -> {
            st(b, "in").filter((k, v) -> v != null).to("out");
            st(b, "in").mapValues(v -> v + "2").to("out2");
        });
        to.dsl("loop_through_topic", b -> {
            st(b, "in").filter((k, v) -> v != null).mapValues(v -> v + "!").to("middle");
            st(b, "middle").groupByKey().count().toStream().to("out", pl());
        });
        to.dsl("branches_nested", b -> {
            Map<String, KStream<String, String>> outer = st(b, "in").split()
                .branch((k, v) -> k == null, Branched.withConsumer(s -> s.to("out-null")))
                .branch((k, v) -> v == null).defaultBranch();
            new TreeMap<>(outer).lastEntry().getValue().to("out-gone");
            st(b, "in2").split(Named.as("in-")).branch((k, v) -> true, Branched.as("first")).noDefaultBranch()
                .get("in-first").flatMap((k, v) -> v == null ? List.<KeyValue<String, String>>of() : List.of(KeyValue.pair(v, k)))
                .to("out-swapped");
        });
        to.dsl("merge_self", b -> {
            KStream<String, String> stream = st(b, "in");
            stream.merge(stream.mapValues(v -> v + "m"), Named.as("both")).to("out");
        });
    }

    /** To partition 0, by the default, or nowhere. */
    private static final class SomeOrNone implements StreamPartitioner<String, String> {
        @Override
        public Optional<Set<Integer>> partitions(String topic, String key, String value, int partitions) {
            if (value == null) {
                return Optional.of(Set.of());
            }
            return value.startsWith("a") ? Optional.of(Set.of(0)) : Optional.empty();
        }
    }

    private static void addRepartitions(Topologies to) {
        for (String name : List.of("reparts_many_none", "reparts_many_all")) {
            to.dsl(name, b -> {
                KStream<String, String> stream = st(b, "in1").selectKey((k, v) -> first(v, "n"), Named.as("rekey"));
                stream.groupByKey(Grouped.as("g1")).count(Materialized.as("c1")).toStream().to("out1", pl());
                wout(stream.mapValues(v -> v + "w").groupByKey(Grouped.<String, String>as("g2"))
                    .windowedBy(TimeWindows.ofSizeWithNoGrace(ms(100))).reduce((a, x) -> cat(a, x)), 100, S);
                stream.filter((k, v) -> v != null)
                    .join(st(b, "in2"), (l, r) -> l + r, JoinWindows.ofTimeDifferenceWithNoGrace(ms(30))).to("out3");
                stream.toTable(kv("rt")).toStream().to("out4");
            });
        }
        for (String name : List.of("reparts_merge_none", "reparts_merge_all")) {
            to.dsl(name, b -> {
                KStream<String, String> merged = st(b, "in1").selectKey((k, v) -> first(v, "n"))
                    .merge(st(b, "in2").map((k, v) -> KeyValue.pair(first(v, "m"), v)));
                merged.groupByKey().count().toStream().to("out1", pl());
                merged.mapValues(v -> v + "x").groupByKey().reduce((a, x) -> cat(a, x)).toStream().to("out2");
            });
        }
        to.dsl("repartition_explicit", b -> st(b, "in").selectKey((k, v) -> first(v, null))
            .repartition(Repartitioned.with(S, S).withName("rp").withNumberOfPartitions(2))
            .groupByKey().count().toStream().to("out", pl()));
        for (String name : List.of("repartition_then_join_none", "repartition_then_join_all")) {
            to.dsl(name, b -> {
                KStream<String, String> left = st(b, "in1").repartition(Repartitioned.as("left"));
                left.join(st(b, "in2").selectKey((k, v) -> k).repartition(), (l, r) -> l + "/" + r,
                    JoinWindows.ofTimeDifferenceWithNoGrace(ms(40))).to("out");
                left.groupBy((k, v) -> v).count().toStream().to("out2", pl());
            });
        }
        to.dsl("grouped_twice_same_name", b -> {
            var grouped = st(b, "in").groupBy((k, v) -> v, Grouped.as("same"));
            grouped.count().toStream().to("out", pl());
            grouped.reduce((a, x) -> cat(a, x)).toStream().to("out2");
        });
        to.dsl("aggregate_chain", b -> st(b, "in").groupBy((k, v) -> v).count(Materialized.as("first")).toStream()
            .groupBy((k, v) -> k.substring(0, 1), Grouped.with(S, L)).count(Materialized.as("second")).toStream()
            .to("out", pl()));
        to.dsl("count_inmem_nocache", b -> st(b, "in").groupByKey()
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("im")).withCachingDisabled()).toStream()
            .to("out", pl()));
        to.dsl("reduce_named", b -> st(b, "in").groupByKey(Grouped.with("unused", S, S))
            .reduce((a, x) -> x.startsWith("d") ? null : cat(a, x), Named.as("red"), Materialized.as("reds"))
            .toStream(Named.as("stream")).to("out"));
        to.dsl("count_versioned", b -> st(b, "in").groupByKey()
            .count(Materialized.<String, Long>as(Stores.persistentVersionedKeyValueStore("vc", ms(300)))).toStream()
            .to("out", pl()));
    }

    private static void addCogroups(Topologies to) {
        to.dsl("cogroup_session", b -> sout(StreamTopologies.cogrouped(b)
            .windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(40), ms(20)))
            .aggregate(() -> "", (k, x, y) -> cat(x, y), sess("cgs").withKeySerde(S).withValueSerde(S)), S));
        to.dsl("cogroup_sliding", b -> wout(StreamTopologies.cogrouped(b)
            .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(50), ms(30)))
            .aggregate(() -> "", ws("cgl").withKeySerde(S).withValueSerde(S)), 50, S));
        to.dsl("cogroup_named", b -> StreamTopologies.cogrouped(b)
            .aggregate(() -> "", Named.as("cg"), kv("cgm").withKeySerde(S).withValueSerde(S)).toStream().to("out"));
        for (String name : List.of("cogroup_rekey_none", "cogroup_rekey_all")) {
            to.dsl(name, b -> st(b, "in1").selectKey((k, v) -> first(v, "n")).groupByKey()
                .<String>cogroup((k, v, a) -> cat(a, "1" + v))
                .cogroup(st(b, "in2").groupBy((k, v) -> first(v, "n"), Grouped.as("two")), (k, v, a) -> cat(a, "2" + v))
                .cogroup(st(b, "in3").groupByKey(), (k, v, a) -> "bob".equals(v) ? null : cat(a, "3" + v))
                .aggregate(() -> "", Materialized.with(S, S)).toStream().to("out"));
        }
    }

    private static void addUserCode(Topologies to) {
        to.dsl("process_named", b -> {
            b.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("seen"), S, S));
            st(b, "in").process(Processors.Dedup::new, Named.as("dedup"), "seen").mapValues(v -> v + "").to("out");
        });
        to.dsl("process_counter", b -> {
            b.addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("cnt"), S, L).withCachingEnabled());
            st(b, "in").process(Processors.KvCounter::new, "cnt").groupByKey().count().toStream().to("out", pl());
        });
        to.dsl("handler_continue", ExtraStreams::failing);
        to.dsl("handler_continue_dlq", ExtraStreams::failing);
        to.dsl("handler_fail", ExtraStreams::failing);
        to.dsl("table_deser_continue", b -> b.table("in", Consumed.with(S, L)).toStream().to("out", pl()));
        to.dsl("ts_skip_join", b -> st(b, "in1").join(tb(b, "in2"), (l, r) -> l + r).to("out"));
    }

    private static void failing(StreamsBuilder b) {
        KTable<String, String> table = st(b, "in")
            .mapValues(v -> {
                if (v == null || v.equals("bob")) {
                    throw new IllegalStateException("no " + v);
                }
                return v;
            })
            .groupByKey()
            .aggregate(() -> "", (k, v, a) -> {
                if (v.equals("cat")) {
                    throw new IllegalStateException("no cats");
                }
                return cat(a, v);
            }, Materialized.with(S, S));
        table.toStream().to("out");
    }
}
