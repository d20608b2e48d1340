package differential;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Field;
import java.util.Collection;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.internals.InternalTopicConfig;
import org.apache.kafka.streams.processor.internals.InternalTopologyBuilder;
import org.apache.kafka.streams.processor.internals.InternalTopologyBuilder.TopicsInfo;
import org.apache.kafka.streams.processor.internals.TopologyMetadata.Subtopology;

/** Tells which topics a topology reads, writes and needs. */
final class TopicsOfTopology {
    private static final long ADDITIONAL_RETENTION_MS = 86_400_000L;
    private static final ObjectMapper JSON = new ObjectMapper();

    private TopicsOfTopology() {}

    static JsonNode of(Topology topology, Properties settings) {
        InternalTopologyBuilder builder =
            (InternalTopologyBuilder) field(Topology.class, "internalTopologyBuilder", topology);
        builder.rewriteTopology(new StreamsConfig(settings));
        builder.buildTopology();
        ObjectNode all = JSON.createObjectNode();
        Set<String> groups = new TreeSet<>();
        for (Collection<String> group : builder.copartitionGroups()) {
            groups.add(new TreeSet<>(group).toString());
        }
        all.set("copartition_groups", JSON.valueToTree(groups));
        for (Map.Entry<Subtopology, TopicsInfo> entry : builder.subtopologyToTopicsInfo().entrySet()) {
            TopicsInfo info = entry.getValue();
            ObjectNode one = all.putObject("subtopology-" + field(Subtopology.class, "nodeGroupId", entry.getKey()));
            one.set("source_topics", JSON.valueToTree(new TreeSet<>(info.sourceTopics)));
            one.set("sink_topics", JSON.valueToTree(new TreeSet<>(info.sinkTopics)));
            Map<String, InternalTopicConfig> changelogs = new TreeMap<>(info.stateChangelogTopics);
            changelogs.keySet().removeAll(info.sourceTopics);
            one.set("changelog", topics(changelogs));
            one.set("source_changelogs", JSON.valueToTree(new TreeSet<>(info.sourceTopicChangelogs())));
            one.set("repartition", topics(info.repartitionSourceTopics));
        }
        return all;
    }

    private static ObjectNode topics(Map<String, InternalTopicConfig> topics) {
        ObjectNode all = JSON.createObjectNode();
        for (Map.Entry<String, InternalTopicConfig> topic : new TreeMap<>(topics).entrySet()) {
            InternalTopicConfig details = topic.getValue();
            ObjectNode one = all.putObject(topic.getKey());
            one.set("config", JSON.valueToTree(new TreeMap<>(details.properties(Map.of(), ADDITIONAL_RETENTION_MS))));
            one.put("enforced", details.hasEnforcedNumberOfPartitions());
            one.put("partitions", details.numberOfPartitions().orElse(null));
        }
        return all;
    }

    private static Object field(Class<?> type, String name, Object object) {
        try {
            Field field = type.getDeclaredField(name);
            field.setAccessible(true);
            return field.get(object);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }
}
