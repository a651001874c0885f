"""Test services that ordinary clients talk to, and what is shown with them. Nothing here imports a reader.

`oracle` is an independent checker of a pipeline's output, `demo` the bank and the steps of `penstock quickstart`.
"""
