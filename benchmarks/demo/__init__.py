"""`make run`: a bank on the Spanner emulator, its change stream into files on Spark, a kill, and a proof.

bank      the tables, and the transactions of a bank
writers   a process that commits such transactions until it is told to end
proof     compares the files with the tables, with the oracle of the tests
postgres  the same for PostgreSQL, with an incremental snapshot (`make run ARGS=postgres`)
__main__  the steps of the demo
"""

from penstock.launch.reporter import ignore_import_warnings

ignore_import_warnings()  # before anything imports Beam
