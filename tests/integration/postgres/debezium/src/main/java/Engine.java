import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.Header;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.FileReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Runs Debezium engines, one for each properties file, until standard input ends. Each one appends its records as JSON
 * lines to the file that its property "penstock.output" names: ["topic", key, value, [["header", value], ...]].
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
            PrintStream output = new PrintStream(properties.getProperty("penstock.output"), StandardCharsets.UTF_8);
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
                    .notifying(record -> output.println(line(record)))
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
