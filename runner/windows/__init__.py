"""Windowing: triggers decide when a window fires, panes hold its values, and merging windows become one.

Uses Beam's windows and trigger proto, neither Spark nor Beam's worker. All modules are pure, except for `panes`, which
reads and writes a state store, and `grouping`, which spills to temporary files.
"""
