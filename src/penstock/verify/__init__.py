"""Compares the rows of a source with a replica, while the pipeline runs and rows change. All modules are internal.

    rounds           decides about rows that are not equal, in rounds; pure
    fingerprints     finds the keys that may not be equal, in files
    digests          of rows, made of whole columns; pure
    folder           keeps these files, so that a comparison can be continued
    budget           how fast the source is read
    keys             keys as text, and values as bytes; pure
    source           rows of the source, in columns or as the events that the pipeline makes of them
    sql_table        a replica in PostgreSQL
    spanner_table    a replica in Spanner
    spanner_values   values as a table of Spanner has them; pure
    columnar_rows    rows in the form of sinks with columns
    columnar_table   a replica in Delta or Iceberg
    replayed_files   the rows of published files, whose changes are replayed
    replayed_lines   the same for JSON Lines
    file_changes     the changes of a file, for each kind of files
    replay           the row after changes in any order; pure
    job              the tables of a job, and their comparison

**How.** First both sides are read once, at different times, and the keys with unequal rows are kept: the *suspects*.
Equal rows are done. Suspects are read again in rounds, by their keys:

1. Read the rows from the source, in a snapshot S. S tells which transactions it sees.
2. Wait until the target is complete until a time after S (`RemoteJob.wait_until_complete`).
3. Read the rows from the target, with their versions.

**Why a difference is real.** Let k be a key whose rows are not equal in a round, and v the version of the target's row
of k (a deleted row stays as a tombstone and has one too). A version names its transaction.

- The target is complete past S: it has every change of k that S sees.
- Changes of one row have one order in the source, and a transaction that changes a row waits until the one before it is
  visible. So S sees a beginning of the changes of k. The target applies them by their versions, so its row is the
  result of all changes of k up to v.
- If S sees v, the target's row is the result of exactly the changes that S sees, and must be equal to the row in S. It
  is not: the difference is real.
- If S does not see v, the row has changed since, and the next round decides. This is also so if the target gets a
  transaction a moment before other sessions of PostgreSQL see it.

A row of a snapshot (READ) in PostgreSQL has a version without a transaction. It contains only what was visible when it
was read. So S sees it if the target had the same version in an earlier round, which ended before S was taken.

If the target has neither a row nor a tombstone of k, no change of k has been applied, or its effect was removed: by a
TRUNCATE, or by the age of the tombstone. The difference is real if S sees the newest TRUNCATE that the target has
applied (in PostgreSQL a reader's lock and a TRUNCATE exclude each other, so its position in the log tells), and if the
round took less time than tombstones are kept.

A row of files is the result of all of its changes that are published. Files of a key are published in the order of its
changes, so these are its changes up to the newest one, as above. Nothing removes tombstones.

A row without a version of Penstock was not written by a change, so it is compared as it is.

**What is assumed.** The clock of a PostgreSQL server is not set back, because T is a commit time. A commit becomes
visible within `tombstone_seconds`. Spanner gives both by its commit timestamps.

**A row that changes in every round.** Spanner reads the past: right after the commit v, the source has exactly the
changes up to v. So the source is read at v, and the target's row is looked at again. If it still has the version v, the
two must be equal. This takes milliseconds and not the time until the target is complete.

**A comparison that was continued.** Digests of the source may be hours old. Unequal keys are suspects, and are read
again as above, so no difference is invented. Equal digests say that the target has now the row that the source had when
its chunk was read. The result says when the first chunk was read.

**What is not decided.** A row that changes in every round, in PostgreSQL, or so fast that its version is another one
each time. It is reported as changing, and is not a difference.
"""
