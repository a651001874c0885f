"""Versions of Python, Java, Spark and Beam that Penstock is tried with: `make matrix`."""
