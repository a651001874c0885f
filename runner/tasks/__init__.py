"""One task of an epoch: the stages of one level for one partition, with their state. Knows nothing of Spark."""
