"""The independent checker: what a pipeline wrote against what really happened. Nothing here imports penstock.

`lines` reads an output folder in the order that the files promise, `rules` says what must be true of the
changes in it, `replay` compares them with the tables, `watch` is a consumer who looks at the output all the
time and takes files away, `kill` runs a pipeline and kills it from outside, with everything it started.
"""
