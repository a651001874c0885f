"""ModifyColumnFamilies: whether the request is possible, and the families after it. Pure.

Families are google.bigtable.admin.v2.ColumnFamily by name; modifications come from the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.cloud.bigtable_admin_v2.types import table as table_types

from penstock_emulators.bigtable.mutations import INVALID_ARGUMENT, NOT_FOUND, Refusal

ALREADY_EXISTS = 6

_ColumnFamily = table_types.ColumnFamily.pb()


def impossible(known: Mapping[str, Any], modifications: Iterable[Any]) -> Refusal | None:
    """Return why one of the modifications cannot be made after the ones before it, or None.

    According to the proto comment of the request, either all of them are made or none. Google's emulator makes those
    before a bad one, so the front checks them first.
    """
    families = dict(known)
    for modification in modifications:
        refusal = _impossible(families, modification)
        if refusal is not None:
            return refusal
        # A later modification of the request sees what the earlier ones have made.
        if modification.HasField("create"):
            families[modification.id] = modification.create
        elif modification.drop:
            del families[modification.id]
    return None


def modified(
    known: Mapping[str, Any], modifications: Iterable[Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the families `now`, which have no rules, with those that they have after the modifications."""
    rules = {name: family.gc_rule for name, family in known.items() if family.HasField("gc_rule")}
    for modification in modifications:
        kind = modification.WhichOneof("mod")
        # A family that is created again does not inherit the rule of the old one.
        if kind == "drop" or kind == "create" or _changes_rule(modification):
            rules.pop(modification.id, None)
        if kind != "drop" and getattr(modification, kind).HasField("gc_rule"):
            rules[modification.id] = getattr(modification, kind).gc_rule
    families = {name: copied(family) for name, family in now.items()}
    for name, rule in rules.items():
        families[name].gc_rule.CopyFrom(rule)
    return families


def copied(message: Any) -> Any:
    """Return a copy of a message."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _impossible(families: Mapping[str, Any], modification: Any) -> Refusal | None:
    name, known = modification.id, modification.id in families
    if modification.WhichOneof("mod") is None:
        return Refusal(INVALID_ARGUMENT, "a modification creates, updates or drops a family")
    if modification.HasField("create"):
        return Refusal(ALREADY_EXISTS, f"family {name!r} already exists") if known else None
    if not known:
        return Refusal(NOT_FOUND, f"the table has no column family {name!r}")
    mask = modification.update_mask
    if not mask.IsValidForDescriptor(_ColumnFamily.DESCRIPTOR):
        return Refusal(INVALID_ARGUMENT, "the update mask names a field that a column family does not have")
    if "value_type" in mask.paths and families[name].value_type.HasField("aggregate_type"):
        return Refusal(INVALID_ARGUMENT, "an aggregate family keeps its value_type")
    return None


def _changes_rule(modification: Any) -> bool:
    """An update without a mask is one of the rule."""
    paths = [path.split(".")[0] for path in modification.update_mask.paths]
    return bool(modification.HasField("update") and (not paths or "gc_rule" in paths))
