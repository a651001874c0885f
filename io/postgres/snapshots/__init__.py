"""Snapshots of PostgreSQL tables, read in chunks and merged with the log. All modules are internal.

options   what the user chooses
chunks    the statements of a chunk, cursors and keys; pure
chunk_reader  reads chunks and the list of tables
channels  where signals come from: a table, a file, a folder, Kafka
worker    the threads that read chunks and signals
merge     the snapshots of one log reader: the engine, its worker, and the records that come out
"""
