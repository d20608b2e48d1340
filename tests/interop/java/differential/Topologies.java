package differential;

import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyConfig;

/** Every topology by name. */
final class Topologies {
    /** Makes a topology for a configuration. */
    interface Definition {
        Topology build(Properties settings);
    }

    /** Defines a topology with the DSL. */
    interface Dsl {
        void define(StreamsBuilder builder);
    }

    /** Defines a topology with the Processor API. */
    interface Papi {
        void define(Topology topology);
    }

    private final Map<String, Definition> definitions = new TreeMap<>();

    Topologies() {
        StreamTopologies.addTo(this);
        WindowTopologies.addTo(this);
        TableTopologies.addTo(this);
        JoinTopologies.addTo(this);
        ProcessorTopologies.addTo(this);
        ExtraStreams.addTo(this);
        ExtraTables.addTo(this);
        ExtraWindows.addTo(this);
        ExtraJoins.addTo(this);
        ExtraProcessors.addTo(this);
    }

    void dsl(String name, Dsl dsl) {
        add(name, settings -> {
            StreamsBuilder builder = new StreamsBuilder(new TopologyConfig(new StreamsConfig(settings)));
            dsl.define(builder);
            return builder.build(settings);
        });
    }

    void papi(String name, Papi papi) {
        add(name, settings -> {
            Topology topology = new Topology(new TopologyConfig(new StreamsConfig(settings)));
            papi.define(topology);
            return topology;
        });
    }

    private void add(String name, Definition definition) {
        if (definitions.put(name, definition) != null) {
            throw new IllegalStateException(name + " is defined twice");
        }
    }

    Topology build(String name, Properties settings) {
        Definition definition = definitions.get(name);
        if (definition == null) {
            throw new IllegalArgumentException("no topology " + name);
        }
        return definition.build(settings);
    }
}
