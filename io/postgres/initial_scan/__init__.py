"""The initial snapshot of PostgreSQL: ranges of blocks at one held snapshot, in parallel. All modules are internal.

frontier     the blocks that remain to be read, then the log; pure
coder        its bytes in a checkpoint
signals      polls the channels of signals while rows are read
stream       reads the blocks of one range in chunks
copied_rows  the rows of a chunk as the server has sent them
pool         the readers of one process
reader       reads blocks from the server
kind         the kind of reading, for the DoFn of the source
"""
