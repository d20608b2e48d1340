package differential;

import static differential.Helpers.L;
import static differential.Helpers.S;
import static differential.Helpers.ms;

import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/** Topologies of the Processor API. */
final class ProcessorTopologies {
    private ProcessorTopologies() {}

    static void addTo(Topologies to) {
        to.papi("papi_kv", t -> counter(t, Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("cnt"), S, L)));
        to.papi("papi_kv_cached", t ->
            counter(t, Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("cnt"), S, L).withCachingEnabled()));
        to.papi("papi_fanout", t -> t.addSource("src", "in1", "in2")
            .addProcessor("router", Processors.Router::new, "src")
            .addProcessor("p-even", Processors.SharedPut::new, "router")
            .addProcessor("p-odd", Processors.SharedGet::new, "router")
            .addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("shared"), S, S), "p-even", "p-odd")
            .addSink("s-even", "out-even", "p-even")
            .addSink("s-odd", "out-odd", "p-odd"));
        to.papi("papi_window_store", t -> one(t, Processors.WinProc::new,
            Stores.windowStoreBuilder(Stores.persistentWindowStore("ws", ms(300), ms(100), false), S, S)));
        to.papi("papi_window_dups", t -> one(t, Processors.WinProc::new,
            Stores.windowStoreBuilder(Stores.persistentWindowStore("ws", ms(300), ms(100), true), S, S)));
        to.papi("papi_range", t -> one(t, () -> new Processors.RangeProc(Processors.Scans.ALL),
            Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("r"), S, S)));
        to.papi("papi_versioned", t -> one(t, Processors.VerProc::new,
            Stores.versionedKeyValueStoreBuilder(Stores.persistentVersionedKeyValueStore("v", ms(200)), S, S)));
        to.papi("papi_global_store", t -> t.addGlobalStore(
                Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("gs"), S, S).withLoggingDisabled(), "gsrc",
                new StringDeserializer(), new StringDeserializer(), "g", "gproc", Processors.GlobProc::new)
            .addSource("src", "in").addProcessor("p", Processors.GlobGet::new, "src").addSink("snk", "out", "p"));
        to.papi("papi_headers", t -> one(t, Processors.HdrProc::new, null));
        to.papi("papi_punct", t -> one(t, Processors.PunctProc::new, null));
        to.papi("papi_session_store", t -> one(t, Processors.SessProc::new,
            Stores.sessionStoreBuilder(Stores.persistentSessionStore("ss", ms(500)), S, S)));
    }

    private static void counter(Topology topology, StoreBuilder<?> store) {
        topology.addSource("src", "in").addProcessor("counter", Processors.KvCounter::new, "src")
            .addStateStore(store, "counter").addSink("snk", "out", "counter");
    }

    static void one(Topology topology, ProcessorSupplier<String, String, String, String> supplier, StoreBuilder<?> store) {
        topology.addSource("src", "in").addProcessor("p", supplier, "src");
        if (store != null) {
            topology.addStateStore(store, "p");
        }
        topology.addSink("snk", "out", "p");
    }
}
