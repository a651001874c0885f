"""Turns Beam's pipeline proto into a plan of stages and edges, on the driver, and rejects unsupported pipelines."""
