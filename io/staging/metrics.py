"""Beam metrics of every staged sink: counters `staged_records`, `staged_files`, `staged_bytes`, `published_files`."""

NAMESPACE = "penstock.io.staging"
