package differential;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.kafka.clients.producer.MockProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.processor.internals.StreamTask;

/**
 * Drives the task of a test driver in smaller steps than the driver does: records may be queued before any is processed, and
 * commits may be left to explicit calls. Where commits are automatic the steps are those of the driver. What the task sends
 * is handed on in the order in which it was sent, over all topics.
 */
final class SteppedDriver {
    private final TopologyTestDriver driver;
    private final boolean commits;
    private final Consumer<ProducerRecord<byte[], byte[]>> sent;
    private final StreamTask task;
    private final MockProducer<byte[], byte[]> producer;
    private final Time clock;
    private final Map<String, TopicPartition> globalInputs;
    private final List<Runnable> globalUpdates = new ArrayList<>();

    SteppedDriver(TopologyTestDriver driver, boolean commits, Consumer<ProducerRecord<byte[], byte[]>> sent) {
        this.driver = driver;
        this.commits = commits;
        this.sent = sent;
        task = field("task");
        producer = field("producer");
        clock = field("mockWallClockTime");
        globalInputs = field("globalPartitionsByInputTopic");
    }

    /** Queues a record, and notes it for the global stores if its topic fills one. */
    void enqueue(String topic, long timestamp, byte[] key, byte[] value, Headers headers) {
        TopicPartition input = call("getInputTopicOrPatternPartition", topic);
        if (input != null) {
            call("enqueueTaskRecord", topic, input, timestamp, key, value, headers);
        }
        TopicPartition global = globalInputs.get(topic);
        if (global != null) {
            globalUpdates.add(() -> call("processGlobalRecord", global, timestamp, key, value, headers));
        }
        if (input == null && global == null) {
            throw new IllegalArgumentException("no source reads " + topic);
        }
    }

    /** Processes what was noted for the global stores. */
    void updateGlobal() {
        globalUpdates.forEach(Runnable::run);
        globalUpdates.clear();
    }

    /** Processes until nothing is queued, what comes back through topics included. */
    void work() {
        capture();
        if (task == null) {
            return;
        }
        task.resumePollingForPartitionsWithAvailableSpace();
        task.updateLags();
        while (task.hasRecordsQueued() && task.isProcessable(clock.milliseconds())) {
            task.process(clock.milliseconds());
            task.maybePunctuateStreamTime();
            if (commits) {
                commit();
            }
            capture();
        }
    }

    /** Moves the wall clock and runs what is due. */
    void advance(long milliseconds) {
        clock.sleep(milliseconds);
        if (task != null) {
            task.maybePunctuateSystemTime();
            if (commits) {
                commit();
            }
        }
        work();
    }

    /** Commits the task. */
    void commit() {
        if (task != null) {
            call("commit", task.prepareCommit(true));
            task.postCommit(true);
        }
    }

    /** Hands on what was sent, and queues what the topology itself reads. */
    void capture() {
        producer.history().forEach(sent);
        call("captureOutputsAndReEnqueueInternalResults");
    }

    @SuppressWarnings("unchecked")
    private <T> T field(String name) {
        try {
            Field field = TopologyTestDriver.class.getDeclaredField(name);
            field.setAccessible(true);
            return (T) field.get(driver);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    @SuppressWarnings("unchecked")
    private <T> T call(String name, Object... arguments) {
        for (Method method : TopologyTestDriver.class.getDeclaredMethods()) {
            if (method.getName().equals(name) && method.getParameterCount() == arguments.length) {
                try {
                    method.setAccessible(true);
                    return (T) method.invoke(driver, arguments);
                } catch (InvocationTargetException error) {
                    if (error.getCause() instanceof RuntimeException cause) {
                        throw cause;
                    }
                    throw new IllegalStateException(error);
                } catch (IllegalAccessException error) {
                    throw new IllegalStateException(error);
                }
            }
        }
        throw new IllegalStateException("the test driver has no method " + name);
    }
}
