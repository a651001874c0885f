"""Snapshots of PostgreSQL tables, read in chunks and merged with the log. All modules are internal.

chunks         the statements of a chunk, cursors and keys; pure
chunk_reader   reads chunks and the list of tables
held_snapshot  keeps one snapshot of the database for all chunks of an initial snapshot
merge          the snapshots of one log reader: the engine, its worker, and the records that they add to the log
setup          puts these parts together

`penstock.io.change_streams.snapshots` has the parts that all sources share.
"""
