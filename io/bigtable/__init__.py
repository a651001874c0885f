"""Bigtable change streams: every change of a table as a `ChangeStreamMutation`, in order per row."""
