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
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;

/**
 * Runs Debezium engines, one for each properties file, until standard input ends. Each one appends its records as JSON
 * lines to the file that its property "penstock.output" names: ["topic", key, value, [["header", value], ...]].
 *
 * <p>With the property "penstock.records" instead, an engine drops its records, and the program ends after that many.
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
            Consumer<ChangeEvent<String, String>> consumer = consumer(properties);
            var engine = DebeziumEngine.create(KeyValueHeaderChangeEventFormat.of(Json.class, Json.class, Json.class))
                    .using(properties)
                    .using((success, message, error) -> {
                        if (!success) {
                            System.err.println("engine of " + file + " failed: " + message);
                            if (error != null) {
                                error.printStackTrace();
                            }
                            Runtime.getRuntime().halt(1);
                        }
                    })
                    .notifying(consumer)
                    .build();
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
}
