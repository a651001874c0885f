"""The proof: compares the files with the tables and with the change stream.

Everything here is the oracle of the tests and an ordinary Spanner client. It uses no code of Penstock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from penstock_emulators.demo import bank
from penstock_emulators.oracle.change import Change, Identity, changes_of
from penstock_emulators.oracle.lines import read_lines, visible_files
from penstock_emulators.oracle.replay import differences, read_table, read_types, replay
from penstock_emulators.oracle.rules import Counts, broken_rules, count_faults
from penstock_emulators.oracle.stream import Stream, read_stream


@dataclass(frozen=True, slots=True)
class Proof:
    """The size of the comparison, its counts, and the differences: sentences that contain no values.

    `wrong` is empty if the proof holds. It also has differences that are not counted, such as a wrong column.
    """

    files: int
    mods: int
    transactions: int
    rows: int
    stream: Stream
    counts: Counts
    wrong: tuple[str, ...]


def prove(output: Path, database: Any, start: datetime, end: datetime) -> Proof:
    """Compare the files in `output` with the tables and with the stream from `start` to `end`, inclusive."""
    changes = list(changes_of(read_lines(output)))
    stream = read_stream(database, bank.STREAM, start, end)
    types = read_types(database)
    tables = {name: read_table(database, name, types[name], key) for name, key in bank.KEYS.items()}
    expected = _identities(stream)
    wrong = [
        *broken_rules(changes),
        *differences(replay(changes), tables, types),
        *_missing(changes, expected),
        *_money(changes),
    ]
    return Proof(
        files=len(visible_files(output)),
        mods=len(changes),
        transactions=len({change.transaction for change in changes}),
        rows=sum(map(len, tables.values())),
        stream=stream,
        counts=count_faults(changes, expected),
        wrong=tuple(wrong),
    )


def _identities(stream: Stream) -> set[Identity]:
    """Return the `Change.identity` of each change that an ordinary reader of the stream finds."""
    return {(record[2], record[1], mod) for record in stream.records for mod in range(len(record[6]))}


def _missing(changes: list[Change], expected: set[Identity]) -> Iterator[str]:
    """The files hold exactly the changes of the stream."""
    found = {change.identity for change in changes}
    if lost := expected - found:
        yield f"{len(lost)} of the stream's {len(expected)} changes are not in the files"
    if foreign := found - expected:
        yield f"{len(foreign)} changes in the files are not in the stream"


def _money(changes: list[Change]) -> Iterator[str]:
    """After each transaction, in commit order, the sum of all accounts equals the sum at the beginning."""
    ordered = sorted(changes, key=lambda change: (change.version[0], change.transaction, change.version))
    balances: dict[str, dict[str, Any]] = {}
    for transaction, mods in groupby(ordered, key=lambda change: change.transaction):
        touched = [change for change in mods if change.table == "Accounts"]
        balances |= {change.key: change.new for change in touched}
        if touched and bank.sum_of_balances(balances.values()) != bank.TOTAL:
            yield f"after transaction {transaction} money was made or lost"
