import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.Header;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.FileReader;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Runs Debezium engines, one for each properties file, until standard input ends. Each one appends its records as JSON
 * lines to the file that its property "penstock.output" names: ["topic", key, value, [["header", value], ...]].
 *
 * <p>With the property "penstock.records" instead, an engine drops its records, and the program ends after that many. With
 * "penstock.kafka" (the addresses of brokers) and "penstock.topic" too, it writes them to a topic first, as Debezium's own
 * server does: a batch is sent, and is processed when the brokers have acknowledged all of it.
 */
public final class Engine {
    public static void main(String[] files) throws Exception {
        List<DebeziumEngine<?>> engines = new ArrayList<>();
        ExecutorService threads = Executors.newCachedThreadPool();
        for (String file : files) {
            Properties properties = new Properties();
            try (FileReader reader = new FileReader(file, StandardCharsets.UTF_8)) {
                properties.load(reader);
            }
            var builder = DebeziumEngine.create(KeyValueHeaderChangeEventFormat.of(Json.class, Json.class, Json.class))
                    .using(properties)
                    .using((success, message, error) -> {
                        if (!success) {
                            System.err.println("engine of " + file + " failed: " + message);
                            if (error != null) {
                                error.printStackTrace();
                            }
                            Runtime.getRuntime().halt(1);
                        }
                    });
            var engine = properties.containsKey("penstock.kafka")
                    ? builder.notifying(new ToKafka(properties)).build()
                    : builder.notifying(consumer(properties)).build();
            engines.add(engine);
            threads.execute(engine);
        }
        while (System.in.read() >= 0) {
            // The parent closes standard input to end the engines.
        }
        for (DebeziumEngine<?> engine : engines) {
            engine.close();
        }
        Runtime.getRuntime().halt(0);
    }

    private static Consumer<ChangeEvent<String, String>> consumer(Properties properties) throws IOException {
        String records = properties.getProperty("penstock.records");
        if (records != null) {
            AtomicLong left = new AtomicLong(Long.parseLong(records));
            return record -> {
                // A deletion's tombstone has no value; the backlogs of the benchmark have no deletions.
                if (left.decrementAndGet() == 0) {
                    Runtime.getRuntime().halt(0);
                }
            };
        }
        PrintStream output = new PrintStream(properties.getProperty("penstock.output"), StandardCharsets.UTF_8);
        return record -> output.println(line(record));
    }

    private static String line(ChangeEvent<String, String> record) {
        StringBuilder line = new StringBuilder("[");
        line.append('"').append(record.destination()).append("\",").append(record.key()).append(',').append(record.value());
        line.append(",[");
        String separator = "";
        List<Header<String>> headers = record.headers();
        for (Header<String> header : headers) {
            line.append(separator).append("[\"").append(header.getKey()).append("\",").append(header.getValue()).append(']');
            separator = ",";
        }
        return line.append("]]").toString();
    }

    /** Writes batches to a topic; ends the program after the last record. */
    private static final class ToKafka implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
        private final KafkaProducer<String, String> producer;
        private final String topic;
        private long left;

        ToKafka(Properties properties) {
            // The client's defaults: all replicas acknowledge, and a repeated request adds nothing.
            producer = new KafkaProducer<>(
                    Map.of("bootstrap.servers", properties.getProperty("penstock.kafka")),
                    new StringSerializer(),
                    new StringSerializer());
            topic = properties.getProperty("penstock.topic");
            left = Long.parseLong(properties.getProperty("penstock.records"));
        }

        @Override
        public void handleBatch(
                List<ChangeEvent<String, String>> records,
                DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer)
                throws InterruptedException {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (ChangeEvent<String, String> record : records) {
                sent.add(producer.send(new ProducerRecord<>(topic, record.key(), record.value())));
            }
            producer.flush();
            for (int number = 0; number < sent.size(); number++) {
                try {
                    sent.get(number).get();
                } catch (ExecutionException error) {
                    throw new IllegalStateException(error.getCause());
                }
                committer.markProcessed(records.get(number));
            }
            committer.markBatchFinished();
            left -= records.size();
            if (left <= 0) {
                Runtime.getRuntime().halt(0);
            }
        }
    }
}
