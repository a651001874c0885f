"""Penstock: database change streams through Apache Beam (Python) pipelines that run on Spark."""

__version__ = "0.1.0"
