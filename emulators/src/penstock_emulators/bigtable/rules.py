"""Garbage-collection rules of column families: the cells of a column that they remove. Pure.

The front does not pass the rules to Google's emulator, which would apply them at any time and without a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def condemned(rule: Any, timestamps: Sequence[int], now_us: int) -> list[int]:
    """Return the cells of a column, given by timestamp (µs, descending), that `rule` removes.

    `rule` is a google.bigtable.admin.v2.GcRule; an empty one removes nothing.
    """
    # Cells come newest first, so the index is the number of newer cells.
    return [stamp for place, stamp in enumerate(timestamps) if _removes(rule, place, now_us - stamp)]


def _removes(rule: Any, newer: int, age_us: int) -> bool:
    """Return whether a cell with `newer` newer cells is removed."""
    kind = rule.WhichOneof("rule")
    if kind == "max_num_versions":
        # `>=`: as many versions as the rule keeps may remain.
        return bool(newer >= rule.max_num_versions)
    if kind == "max_age":
        return bool(age_us > rule.max_age.ToMicroseconds())
    if kind == "union":
        return any(_removes(part, newer, age_us) for part in rule.union.rules)
    if kind == "intersection":
        return all(_removes(part, newer, age_us) for part in rule.intersection.rules)
    return False
