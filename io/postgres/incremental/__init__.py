"""Snapshots of PostgreSQL tables, read in chunks and merged with the log. All modules are internal.

chunks          the statements of a chunk, cursors and keys; pure
chunk_reader    reads chunks and the list of tables
held_read_view  keeps one read view of the database for all chunks of an initial scan
merge           the snapshots of one reader: the engine, its worker, and the records that they add to the log
setup           puts these parts together

`penstock.io.change_streams.incremental` has the parts that all sources share.
"""
