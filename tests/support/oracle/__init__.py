"""The independent checker of a pipeline's output. Nothing here imports penstock.

- `lines` reads an output folder in the order that the files promise.
- `rules` are the conditions that the changes in every output must meet.
- `replay` applies the changes and compares the result with the tables.
- `stream` reads a change stream with an ordinary client.
- `watch` is a consumer that looks at the output during the whole run and takes files away.
- `kill` runs a pipeline and kills it from another process, with all processes that it started.
"""
