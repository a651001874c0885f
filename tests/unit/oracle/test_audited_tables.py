"""The comparison of tables with the audit of their source finds what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.sinks.audited_tables import current_faults, history_faults, log_faults
from tests.integration.sinks.audited_writers import Audit, Change

FIRST, SECOND, THIRD = (f"2026-01-31T12:00:0{n}.000000+00:00" for n in range(3))
OLD, NEW, MOVED = {"id": 1, "note": "a"}, {"id": 1, "note": "b"}, {"id": 2, "note": "b"}
AUDIT = [
    Change("INSERT", FIRST, None, OLD),
    Change("UPDATE", SECOND, OLD, NEW),
    Change("UPDATE", THIRD, NEW, MOVED),
]


def audit() -> Audit:
    return Audit("accounts", AUDIT)


def version(
    number: int, values: dict[str, Any], begun: str, ended: str | None, deleted: bool
) -> dict[str, Any]:
    times = {"_penstock_timestamp": begun, "_penstock_valid_to": ended}
    # A column that was added later, and is compared with nothing.
    return {**values, **times, "_penstock_version": f"{number}", "_penstock_deleted": deleted, "later": None}


HISTORY = [
    version(3, MOVED, THIRD, None, False),
    version(1, OLD, FIRST, SECOND, False),
    version(2, NEW, SECOND, THIRD, True),
]


def logged(number: int, op: str, at: str, after: dict[str, Any], not_sent: list[str]) -> dict[str, Any]:
    sent = {**after, **dict.fromkeys(not_sent)}
    metadata = {"version": f"{number}", "not_sent": not_sent}
    return {"op": op, "timestamp": at, "key": {"id": after["id"]}, "after": sent, "metadata": metadata}


LOG = [
    logged(1, "CREATE", FIRST, OLD, []),
    logged(2, "UPDATE", SECOND, NEW, []),
    logged(3, "UPDATE", THIRD, MOVED, ["note"]),
]


def test_equal_tables_have_no_faults():
    assert history_faults(audit(), HISTORY) == []
    assert log_faults(audit(), LOG) == []
    deleted = {"id": 1, "note": None, "_penstock_deleted": True}
    assert current_faults("accounts", {(2,): MOVED}, [deleted, {**MOVED, "_penstock_deleted": False}]) == []


def test_a_truncate_ends_all_rows():
    emptied = Audit("accounts", [*AUDIT, Change("TRUNCATE", THIRD, None, None)])
    moved = version(3, MOVED, THIRD, THIRD, True)
    assert history_faults(emptied, [moved, *HISTORY[1:]]) == []
    assert history_faults(emptied, HISTORY)
    assert log_faults(emptied, LOG) == ["(): 0 rows instead of 1"]


@pytest.mark.parametrize(
    ("number", "wrong"),
    [
        (1, {"note": "b"}),
        (1, {"_penstock_valid_to": THIRD}),
        (1, {"_penstock_timestamp": SECOND}),
        (2, {"_penstock_deleted": False}),
        (0, {"id": 3}),
    ],
)
def test_a_wrong_version_of_a_history_is_told(number: int, wrong: dict[str, Any]):
    assert history_faults(audit(), [*HISTORY[:number], {**HISTORY[number], **wrong}, *HISTORY[number + 1 :]])


@pytest.mark.parametrize(
    "rows",
    [
        LOG[1:],
        [*LOG, LOG[0]],
        [LOG[0], {**LOG[1], "op": "DELETE"}, LOG[2]],
        [LOG[0], {**LOG[1], "after": OLD}, LOG[2]],
        [LOG[0], {**LOG[1], "timestamp": THIRD}, LOG[2]],
        [{**LOG[0], "metadata": LOG[1]["metadata"]}, {**LOG[1], "metadata": LOG[0]["metadata"]}, LOG[2]],
    ],
    ids=["lost", "twice", "kind", "value", "time", "order"],
)
def test_a_wrong_log_is_told(rows: list[dict[str, Any]]):
    assert log_faults(audit(), rows)


@pytest.mark.parametrize(
    "rows",
    [[], [{**MOVED, "note": "a"}], [MOVED, MOVED], [MOVED, OLD]],
    ids=["lost", "value", "twice", "more"],
)
def test_wrong_current_rows_are_told(rows: list[dict[str, Any]]):
    assert current_faults("accounts", {(2,): MOVED}, [{**row, "_penstock_deleted": False} for row in rows])
