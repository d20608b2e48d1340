import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Counts words, in total and per window of ten seconds, until standard input ends.
 *
 * <p>Arguments are settings (name=value); {@code input} and {@code output} name the topics, windowed counts go to
 * {@code <output>-windowed}. Prints each state it enters, and {@code CLOSED} after it has left the group.
 */
public final class WordCount {
    private static final Duration WINDOW = Duration.ofSeconds(10);

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String argument : arguments) {
            int split = argument.indexOf('=');
            settings.put(argument.substring(0, split), argument.substring(split + 1));
        }
        String input = (String) settings.remove("input");
        String output = (String) settings.remove("output");

        StreamsBuilder builder = new StreamsBuilder();
        KGroupedStream<String, String> words = builder
            .stream(input, Consumed.with(Serdes.String(), Serdes.String()))
            .flatMap((key, line) -> Arrays.stream(line.split(" ")).map(word -> KeyValue.pair(word, word)).toList())
            .groupByKey(Grouped.with("words", Serdes.String(), Serdes.String()));
        words
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .to(output, Produced.with(Serdes.String(), Serdes.Long()));
        words
            .windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, Duration.ofHours(1)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("windowed-counts"))
            .toStream()
            .to(
                output + "-windowed",
                Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, WINDOW.toMillis()), Serdes.Long()));

        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setStateListener((now, before) -> System.out.println(now));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        while (System.in.read() >= 0) {
            // Whoever started this program holds its standard input open for as long as it is to run.
        }
        boolean closed = streams.close(
            CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP)
                .withTimeout(Duration.ofSeconds(60)));
        System.out.println(closed ? "CLOSED" : "NOT CLOSED IN TIME");
        System.exit(closed ? 0 : 1);
    }
}
