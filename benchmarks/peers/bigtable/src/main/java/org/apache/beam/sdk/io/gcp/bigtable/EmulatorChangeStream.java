package org.apache.beam.sdk.io.gcp.bigtable;

import com.google.api.gax.core.NoCredentialsProvider;
import com.google.api.gax.grpc.InstantiatingGrpcChannelProvider;
import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminSettings;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminSettings;
import com.google.cloud.bigtable.data.v2.BigtableDataSettings;
import io.grpc.ManagedChannelBuilder;
import java.io.Serializable;
import org.apache.beam.sdk.io.gcp.bigtable.changestreams.dao.BigtableClientOverride;

/**
 * Points Beam's connector at an emulator. It sets its own transport, so BIGTABLE_EMULATOR_HOST does not reach it, and
 * the way to override that is visible in this package only.
 */
public final class EmulatorChangeStream {
  private EmulatorChangeStream() {}

  public static BigtableIO.ReadChangeStream at(String host) {
    return BigtableIO.readChangeStream().withBigtableClientOverride(new Plaintext(host));
  }

  private record Plaintext(String host) implements BigtableClientOverride, Serializable {
    private InstantiatingGrpcChannelProvider transport() {
      return InstantiatingGrpcChannelProvider.newBuilder()
          .setEndpoint(host)
          .setMaxInboundMessageSize(256 << 20)
          .setChannelConfigurator(ManagedChannelBuilder::usePlaintext)
          .build();
    }

    @Override
    public void updateDataClientSettings(BigtableDataSettings.Builder settings) {
      settings
          .stubSettings()
          .setCredentialsProvider(NoCredentialsProvider.create())
          .setEndpoint(host)
          .setTransportChannelProvider(transport());
    }

    @Override
    public void updateTableAdminClientSettings(BigtableTableAdminSettings.Builder settings) {
      settings
          .stubSettings()
          .setCredentialsProvider(NoCredentialsProvider.create())
          .setEndpoint(host)
          .setTransportChannelProvider(transport());
    }

    @Override
    public void updateInstanceAdminClientSettings(BigtableInstanceAdminSettings.Builder settings) {
      settings
          .stubSettings()
          .setCredentialsProvider(NoCredentialsProvider.create())
          .setEndpoint(host)
          .setTransportChannelProvider(transport());
    }
  }
}
