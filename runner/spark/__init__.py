"""Everything that knows Spark: sessions, the Java they need, the jobs of an epoch, and what is said to its UI."""
