"""The driver of a pipeline: from a commit record to the next epoch, and from its reports to the next record."""
