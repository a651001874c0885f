"""A standalone Spark cluster on loopback, and a pipeline that runs on it."""
