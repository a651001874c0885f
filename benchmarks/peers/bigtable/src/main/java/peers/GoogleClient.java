package peers;

import com.google.api.gax.rpc.ServerStream;
import com.google.cloud.bigtable.data.v2.BigtableDataClient;
import com.google.cloud.bigtable.data.v2.BigtableDataSettings;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamContinuationToken;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamMutation;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamRecord;
import com.google.cloud.bigtable.data.v2.models.CloseStream;
import com.google.cloud.bigtable.data.v2.models.Range.ByteStringRange;
import com.google.cloud.bigtable.data.v2.models.ReadChangeStreamQuery;
import com.google.protobuf.ByteString;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/**
 * Google's Java client, used as its documentation says: a thread a partition, and a new partition is opened when
 * the tokens of all its parts are here. With "reopen", a part that has waited for 50 ms is opened as a partition of
 * its own.
 *
 * <p>Arguments: project, instance, table, start in microseconds, "follow" or "reopen".
 */
public final class GoogleClient {
  /** A part of a partition that waits for the others: its token, and since when. */
  private record Part(ChangeStreamContinuationToken token, long sinceNanos) {}

  private final BigtableDataClient client;
  private final String table;
  private final Map<ByteStringRange, List<Part>> waiting = new HashMap<>();

  private GoogleClient(BigtableDataClient client, String table) {
    this.client = client;
    this.table = table;
  }

  public static void main(String[] args) throws Exception {
    var settings = BigtableDataSettings.newBuilder().setProjectId(args[0]).setInstanceId(args[1]).build();
    var reader = new GoogleClient(BigtableDataClient.create(settings), args[2]);
    long startUs = Long.parseLong(args[3]);
    Instant start = Instant.ofEpochSecond(startUs / 1_000_000, startUs % 1_000_000 * 1000);
    for (ByteStringRange range : reader.client.generateInitialChangeStreamPartitions(args[2])) {
      reader.open(reader.query(range).startTime(start));
    }
    while (true) {
      Thread.sleep(10);
      if (args[4].equals("reopen")) {
        reader.reopenStalled();
      }
    }
  }

  private ReadChangeStreamQuery query(ByteStringRange range) {
    return ReadChangeStreamQuery.create(table).streamPartition(range).heartbeatDuration(Duration.ofSeconds(1));
  }

  private void open(ReadChangeStreamQuery query) {
    Thread thread = new Thread(() -> follow(query));
    thread.setDaemon(true);
    thread.start();
  }

  private void follow(ReadChangeStreamQuery query) {
    ServerStream<ChangeStreamRecord> stream = client.readChangeStream(query);
    for (ChangeStreamRecord record : stream) {
      if (record instanceof ChangeStreamMutation mutation) {
        Lines.print(mutation);
      } else if (record instanceof CloseStream close) {
        closed(close);
      }
    }
  }

  private synchronized void closed(CloseStream close) {
    List<ChangeStreamContinuationToken> tokens = close.getChangeStreamContinuationTokens();
    for (int place = 0; place < tokens.size(); place++) {
      ByteStringRange target = close.getNewPartitions().get(place);
      List<Part> parts = waiting.computeIfAbsent(target, range -> new ArrayList<>());
      parts.add(new Part(tokens.get(place), System.nanoTime()));
      if (covers(target, parts)) {
        waiting.remove(target);
        open(query(target).continuationTokens(parts.stream().map(Part::token).toList()));
      }
    }
  }

  private synchronized void reopenStalled() {
    for (Iterator<List<Part>> lists = waiting.values().iterator(); lists.hasNext(); ) {
      List<Part> parts = lists.next();
      if (System.nanoTime() - parts.get(parts.size() - 1).sinceNanos() > 50_000_000) {
        lists.remove();
        for (Part part : parts) {
          open(query(part.token().getPartition()).continuationTokens(List.of(part.token())));
        }
      }
    }
  }

  private static boolean covers(ByteStringRange target, List<Part> parts) {
    ByteString reached = start(target);
    List<ByteStringRange> ranges = new ArrayList<>(parts.stream().map(part -> part.token().getPartition()).toList());
    ranges.sort(Comparator.comparing(GoogleClient::start, ByteString.unsignedLexicographicalComparator()));
    for (ByteStringRange range : ranges) {
      if (!start(range).equals(reached)) {
        return false;
      }
      reached = end(range);
    }
    return reached.equals(end(target));
  }

  private static ByteString start(ByteStringRange range) {
    return range.getStartBound() == com.google.cloud.bigtable.data.v2.models.Range.BoundType.UNBOUNDED
        ? ByteString.EMPTY
        : range.getStart();
  }

  private static ByteString end(ByteStringRange range) {
    return range.getEndBound() == com.google.cloud.bigtable.data.v2.models.Range.BoundType.UNBOUNDED
        ? ByteString.EMPTY
        : range.getEnd();
  }
}
