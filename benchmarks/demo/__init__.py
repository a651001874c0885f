"""`make run`: a bank on the Spanner emulator, its change stream into files on Spark, a kill, and a proof.

bank      the tables, and what a bank does to them
writers   a process that does it the whole time
proof     the files against the tables, by the oracle of the tests
__main__  the story
"""

from penstock.cli.console import ignore_import_warnings

ignore_import_warnings()  # before anything imports Beam
