"""Incremental snapshots of any source: tables are read in chunks while the change stream is read, and merged with it.

Pure: no client, no clock, no Beam. A source reads chunks and passes them, with its changes, to a `SnapshotEngine`.

signals        requests of users: execute, stop, pause, resume
progress       the rows that remain to be read, as one value; it is a part of the source's checkpoint
notifications  reports about the progress
engine         merges chunks with changes by the visibility rule
"""
