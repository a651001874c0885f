"""More of the independent checker in `penstock_emulators.oracle`. Nothing here imports penstock.

- `watch` is a consumer that looks at the output during the whole run and takes files away.
- `watermarks` compares the watermarks of a run with its files.
- `change_feed` reads what a Spark query has written from a data source.
- `naive_spanner_reader` reads a change stream to its end, as slowly and simply as can be.
- `memory` measures the processes of a program.
"""
