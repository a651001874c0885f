"""The `penstock` command line: reads job files and options, runs templates and shows their progress."""
