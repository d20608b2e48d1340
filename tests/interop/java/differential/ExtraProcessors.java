package differential;

import static differential.Helpers.L;
import static differential.Helpers.S;
import static differential.Helpers.ms;
import static differential.ProcessorTopologies.one;

import java.util.Map;
import org.apache.kafka.streams.state.Stores;

/** More of the Processor API: every kind of store, cached and in memory. */
final class ExtraProcessors {
    private ExtraProcessors() {}

    static void addTo(Topologies to) {
        addKeyValues(to);
        addWindowsAndSessions(to);
        to.papi("papi_read_only", t -> t.addReadOnlyStateStore(
                Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("gs"), S, S), "rsrc", S.deserializer(),
                S.deserializer(), "g", "rproc", Processors.GlobProc::new)
            .addSource("src", "in").addProcessor("p", Processors.GlobGet::new, "src")
            .connectProcessorAndStateStores("p", "gs").addSink("snk", "out", "p"));
        to.papi("papi_global_persistent", t -> t.addGlobalStore(
                Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("gs"), S, S).withLoggingDisabled(), "gsrc",
                S.deserializer(), S.deserializer(), "g", "gproc", Processors.GlobProc::new)
            .addSource("src", "in").addProcessor("p", Processors.GlobGet::new, "src").addSink("snk", "out", "p"));
        to.papi("papi_diamond", t -> t.addSource("src", "in")
            .addProcessor("left", Processors.HdrProc::new, "src").addProcessor("right", Processors.PunctProc::new, "src")
            .addProcessor("both", Processors.KvCounter::new, "left", "right")
            .addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("cnt"), S, L), "both")
            .addSink("snk", "out", "both").addSink("raw", "out2", "src"));
        to.papi("papi_two_tasks", t -> t.addSource("s1", "in1").addProcessor("p1", Processors.Router::new, "s1")
            .addProcessor("p-even", Processors.SharedPut::new, "p1").addProcessor("p-odd", Processors.SharedPut::new, "p1")
            .addStateStore(Stores.keyValueStoreBuilder(Stores.lruMap("shared", 2), S, S), "p-even", "p-odd")
            .addSink("k1", "middle", "p-even", "p-odd").addSource("s2", "middle", "in2")
            .addProcessor("p2", Processors.Dedup::new, "s2")
            .addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("seen"), S, S).withLoggingDisabled(), "p2")
            .addSink("k2", "out", "p2"));
        to.papi("papi_interleaved", t -> t.addSource("s1", "in1").addSource("s2", "in2")
            .addProcessor("counter", Processors.KvCounter::new, "s2")
            .addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("cnt"), S, L).withCachingEnabled(), "counter")
            .addSink("k2", "out2", "counter")
            .addProcessor("punct", Processors.PunctProc::new, "s1").addProcessor("dedup", Processors.Dedup::new, "punct")
            .addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("seen"), S, S).withCachingEnabled(), "dedup")
            .addSink("k1", "out1", "dedup"));
    }

    private static void addKeyValues(Topologies to) {
        to.papi("papi_range_inmem", t -> one(t, () -> new Processors.RangeProc(Processors.Scans.ALL),
            Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("r"), S, S)));
        to.papi("papi_range_cached", t -> one(t, () -> new Processors.RangeProc(Processors.Scans.FORWARD),
            Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("r"), S, S).withCachingEnabled()));
        to.papi("papi_range_cached_back", t -> one(t, () -> new Processors.RangeProc(Processors.Scans.WITHOUT_DELETES),
            Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("r"), S, S).withCachingEnabled()));
        to.papi("papi_range_inmem_cached", t -> one(t, () -> new Processors.RangeProc(Processors.Scans.FORWARD),
            Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("r"), S, S).withCachingEnabled()));
        to.papi("papi_range_inmem_cached_back", t -> one(t, () -> new Processors.RangeProc(Processors.Scans.WITHOUT_DELETES),
            Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("r"), S, S).withCachingEnabled()));
        to.papi("papi_versioned_short", t -> one(t, Processors.VerProc::new,
            Stores.versionedKeyValueStoreBuilder(Stores.persistentVersionedKeyValueStore("v", ms(60)), S, S)));
        to.papi("papi_versioned_segments", t -> one(t, Processors.VerProc::new,
            Stores.versionedKeyValueStoreBuilder(Stores.persistentVersionedKeyValueStore("v", ms(200), ms(50)), S, S)
                .withLoggingDisabled()));
    }

    private static void addWindowsAndSessions(Topologies to) {
        to.papi("papi_window_cached", t -> one(t, Processors.WinProc::new,
            Stores.windowStoreBuilder(Stores.persistentWindowStore("ws", ms(300), ms(100), false), S, S).withCachingEnabled()));
        to.papi("papi_window_inmem", t -> one(t, Processors.WinProc::new,
            Stores.windowStoreBuilder(Stores.inMemoryWindowStore("ws", ms(300), ms(100), false), S, S)));
        to.papi("papi_window_inmem_cached", t -> one(t, Processors.WinProc::new,
            Stores.windowStoreBuilder(Stores.inMemoryWindowStore("ws", ms(300), ms(100), false), S, S).withCachingEnabled()));
        to.papi("papi_window_inmem_dups", t -> one(t, Processors.WinProc::new,
            Stores.windowStoreBuilder(Stores.inMemoryWindowStore("ws", ms(300), ms(100), true), S, S)));
        to.papi("papi_window_dups_logged", t -> one(t, Processors.WinProc::new,
            Stores.windowStoreBuilder(Stores.persistentWindowStore("ws", ms(300), ms(100), true), S, S)
                .withLoggingEnabled(Map.of("segment.ms", "77"))));
        to.papi("papi_session_cached", t -> one(t, Processors.SessProc::new,
            Stores.sessionStoreBuilder(Stores.persistentSessionStore("ss", ms(500)), S, S).withCachingEnabled()));
        to.papi("papi_session_inmem", t -> one(t, Processors.SessProc::new,
            Stores.sessionStoreBuilder(Stores.inMemorySessionStore("ss", ms(500)), S, S)));
        to.papi("papi_session_short", t -> one(t, Processors.SessProc::new,
            Stores.sessionStoreBuilder(Stores.inMemorySessionStore("ss", ms(60)), S, S).withCachingEnabled()));
        to.papi("papi_window_scans", t -> one(t, () -> new Processors.WinScans(Processors.Scans.ALL),
            Stores.windowStoreBuilder(Stores.persistentWindowStore("ws", ms(400), ms(100), false), S, S)));
        to.papi("papi_window_scans_cached", t -> one(t, () -> new Processors.WinScans(Processors.Scans.FORWARD),
            Stores.windowStoreBuilder(Stores.persistentWindowStore("ws", ms(400), ms(100), false), S, S).withCachingEnabled()));
        to.papi("papi_window_scans_cached_back", t -> one(t, () -> new Processors.WinScans(Processors.Scans.WITHOUT_DELETES),
            Stores.windowStoreBuilder(Stores.persistentWindowStore("ws", ms(400), ms(100), false), S, S).withCachingEnabled()));
        to.papi("papi_window_scans_inmem", t -> one(t, () -> new Processors.WinScans(Processors.Scans.ALL),
            Stores.windowStoreBuilder(Stores.inMemoryWindowStore("ws", ms(400), ms(100), false), S, S)));
        to.papi("papi_session_scans", t -> one(t, () -> new Processors.SessScans(Processors.Scans.ALL),
            Stores.sessionStoreBuilder(Stores.persistentSessionStore("ss", ms(400)), S, S)));
        to.papi("papi_session_scans_cached", t -> one(t, () -> new Processors.SessScans(Processors.Scans.FORWARD),
            Stores.sessionStoreBuilder(Stores.persistentSessionStore("ss", ms(400)), S, S).withCachingEnabled()));
        to.papi("papi_session_scans_cached_back", t -> one(t, () -> new Processors.SessScans(Processors.Scans.WITHOUT_DELETES),
            Stores.sessionStoreBuilder(Stores.persistentSessionStore("ss", ms(400)), S, S).withCachingEnabled()));
        to.papi("papi_session_scans_inmem", t -> one(t, () -> new Processors.SessScans(Processors.Scans.ALL),
            Stores.sessionStoreBuilder(Stores.inMemorySessionStore("ss", ms(400)), S, S)));
    }
}
