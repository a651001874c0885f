"""When windows fire, and which values their panes contain: triggers, panes, groups and merging windows.

Uses Beam's windows and trigger proto, neither Spark nor Beam's worker. All modules are pure, except for `panes`, which
reads and writes a state store, and `grouping`, which spills to temporary files.
"""
