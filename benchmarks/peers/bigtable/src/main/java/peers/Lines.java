package peers;

import com.google.cloud.bigtable.data.v2.models.ChangeStreamMutation;
import com.google.cloud.bigtable.data.v2.models.Entry;
import com.google.cloud.bigtable.data.v2.models.SetCell;

/** What the readers print: key, value and commit time in microseconds of each cell that was set. */
public final class Lines {
  private Lines() {}

  public static void print(ChangeStreamMutation mutation) {
    for (Entry entry : mutation.getEntries()) {
      if (entry instanceof SetCell cell) {
        var commit = mutation.getCommitTime();
        long commitUs = commit.getEpochSecond() * 1_000_000 + commit.getNano() / 1000;
        String line = mutation.getRowKey().toStringUtf8() + "\t" + cell.getValue().toStringUtf8() + "\t" + commitUs;
        synchronized (Lines.class) {
          System.out.println(line);
          System.out.flush();
        }
      }
    }
  }
}
