"""A simulated Cloud Spanner with change streams, written from the service's documentation."""
