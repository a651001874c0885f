"""Whole pipelines in Python."""
