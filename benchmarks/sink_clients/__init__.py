"""Sinks that send rows, against the plain client of the same target; and the time until readers see a change.

This is a folder and not a script, because `make bench` runs every script in `benchmarks`.
"""
