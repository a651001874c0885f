"""Beam pipelines on Spark through PySpark."""
