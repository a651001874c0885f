"""When windows fire and what their panes hold: triggers, panes, groups and windows that merge. Pure but for a store.

Knows Beam's windows and trigger proto, neither Spark nor the tasks.
"""
