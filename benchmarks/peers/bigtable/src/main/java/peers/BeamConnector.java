package peers;

import com.google.cloud.bigtable.data.v2.models.ChangeStreamMutation;
import com.google.protobuf.ByteString;
import org.apache.beam.sdk.Pipeline;
import org.apache.beam.sdk.io.gcp.bigtable.EmulatorChangeStream;
import org.apache.beam.sdk.options.PipelineOptionsFactory;
import org.apache.beam.sdk.transforms.DoFn;
import org.apache.beam.sdk.transforms.ParDo;
import org.apache.beam.sdk.values.KV;
import org.joda.time.Instant;

/**
 * Beam's Java connector on its direct runner. Arguments: host, project, instance, table, start in microseconds.
 * It makes a metadata table beside the table and checks its app profiles.
 */
public final class BeamConnector {
  private BeamConnector() {}

  static final class PrintFn extends DoFn<KV<ByteString, ChangeStreamMutation>, Void> {
    @ProcessElement
    public void process(@Element KV<ByteString, ChangeStreamMutation> change) {
      Lines.print(change.getValue());
    }
  }

  public static void main(String[] args) {
    Pipeline pipeline =
        Pipeline.create(
            PipelineOptionsFactory.fromArgs("--blockOnRun=true", "--targetParallelism=4", "--project=" + args[1])
                .create());
    pipeline
        .apply(
            EmulatorChangeStream.at(args[0])
                .withProjectId(args[1])
                .withInstanceId(args[2])
                .withTableId(args[3])
                .withAppProfileId("default")
                .withChangeStreamName("peers")
                .withMetadataTableTableId(args[3] + "-metadata")
                // Whole milliseconds are all that Joda has; rounded up, so as not to be before the stream.
                .withStartTime(Instant.ofEpochMilli((Long.parseLong(args[4]) + 999) / 1000)))
        .apply(ParDo.of(new PrintFn()));
    pipeline.run().waitUntilFinish();
  }
}
