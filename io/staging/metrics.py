"""Beam metrics of every staged sink: counters `staged_records`, `staged_files`, `staged_bytes`, `published_files`."""

NAMESPACE = "penstock.io.staging"

DEAD_LETTERS = "dead_letters"
"""Dead letters that `penstock.transforms.DeadLetters` has made, of whatever step."""
