"""The epoch protocol: pure rules, no Spark, no Beam."""
