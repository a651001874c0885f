"""`make run`: a bank on the Spanner emulator, its change stream into files on Spark, a kill, and a proof.

service   which Spanner is used
postgres  the same for PostgreSQL, with an incremental snapshot (`make run ARGS=postgres`)
spark     a Spark program without Beam (`make run ARGS=spark`)
__main__  the steps of the demo; the bank and the proof are those of `penstock quickstart` (`penstock_emulators.demo`)
"""

from penstock.launch.reporter import ignore_import_warnings

ignore_import_warnings()  # before anything imports Beam
