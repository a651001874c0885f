"""Incremental snapshots of Spanner's tables, merged with the change stream. All modules are internal.

chunks        the statements of a chunk, cursors and keys; pure
chunk_reader  reads chunks and the list of tables
merging       the rules about Spanner's records

`penstock.io.change_streams.incremental` has the parts that all sources share.
"""
