"""Sources and sinks: one package a system (`penstock.io.spanner`, `penstock.io.files`, …)."""
