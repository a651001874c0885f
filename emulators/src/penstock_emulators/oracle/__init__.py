"""The independent checker of a pipeline's output. Nothing here imports a reader, a sink or a runner.

- `lines` reads an output folder in the order that the files promise.
- `change` is one line as a changed row.
- `rules` are the conditions that the changes in every output must meet.
- `replay` applies the changes and compares the result with the tables.
- `stream` reads a change stream with an ordinary client.
- `kill` runs a pipeline and kills it from another process, with all processes that it started.
"""
