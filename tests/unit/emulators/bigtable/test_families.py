"""Which modifications of column families are taken, and what becomes of their rules."""

from __future__ import annotations

import pytest
from google.cloud.bigtable_admin_v2.types import bigtable_table_admin as admin_types
from google.cloud.bigtable_admin_v2.types import table as table_types

from penstock_emulators.bigtable.families import impossible, modified

KNOWN = {
    "f": table_types.ColumnFamily.pb(table_types.ColumnFamily(gc_rule={"max_num_versions": 1})),
    "sums": table_types.ColumnFamily.pb(table_types.ColumnFamily(value_type={"aggregate_type": {"sum": {}}})),
}


def modifications(*given: dict[str, object]):
    request = admin_types.ModifyColumnFamiliesRequest(modifications=given)
    return admin_types.ModifyColumnFamiliesRequest.pb(request).modifications


def update(name: str, *paths: str) -> dict[str, object]:
    return {"id": name, "update": {}, "update_mask": {"paths": paths}}


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"id": "f", "create": {}}, 6),
        ({"id": "new", "drop": True}, 5),
        (update("new"), 5),
        (update("f", "no_such_field"), 3),
        (update("sums", "value_type"), 3),
        ({"id": "f"}, 3),
    ],
)
def test_a_modification_that_no_family_allows_is_refused(given: dict[str, object], code: int) -> None:
    refusal = impossible(KNOWN, modifications({"id": "other", "create": {}}, given))
    assert refusal is not None
    assert refusal.code == code


def test_a_modification_sees_those_before_it() -> None:
    once = [{"id": "f", "drop": True}, {"id": "f", "create": {}}, update("f", "value_type"), update("sums")]
    assert impossible(KNOWN, modifications(*once)) is None
    refusal = impossible(KNOWN, modifications({"id": "f", "drop": True}, update("f")))
    assert refusal is not None
    assert refusal.code == 5


def test_a_family_keeps_its_rule_until_that_is_changed() -> None:
    now = {"f": table_types.ColumnFamily.pb()()}
    assert modified(KNOWN, modifications(update("f", "value_type")), now)["f"].gc_rule.max_num_versions == 1
    assert not modified(KNOWN, modifications(update("f", "gc_rule")), now)["f"].HasField("gc_rule")
    dropped_and_created = [{"id": "f", "drop": True}, {"id": "f", "create": {}}]
    assert not modified(KNOWN, modifications(*dropped_and_created), now)["f"].HasField("gc_rule")
