"""A bank whose changes a pipeline reads while it is killed, and the proof that nothing was lost.

bank        the tables, and the transactions of a bank
writers     a process that commits such transactions until it is told to end
waiting     waits for a pipeline as long as it publishes something
proof       compares the files with the tables, with the checker in `penstock_emulators.oracle`
quickstart  the steps of `penstock quickstart`

`make run` of a clone uses the first four too.
"""
