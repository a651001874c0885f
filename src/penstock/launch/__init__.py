"""Runs one pipeline from start to exit code: signals, progress, messages. Shared by the command and by programs.

`run` starts the pipeline and waits for its end, `signals` turns SIGINT, SIGTERM and SIGHUP into one request to stop,
`reporter` writes progress and messages, `streams` keeps standard error usable, `failures` describes errors.
"""
