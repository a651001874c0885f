"""Progress and metrics of a running pipeline, for the command line and for monitoring systems."""
