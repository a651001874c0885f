"""Which policy holds for a change of the columns of a table: `schema_changes`, per job, table and kind of change. Pure.

    evolve                     all tables
    add=stop                   one kind of change, in all tables
    sales.orders=ignore        a table, a name or a glob as in `penstock.tables`
    sales.*.type=lenient       one kind of change in some tables

The last entry that fits a table and a kind counts. A last part that is the name of a kind is one: a table with such a
name is written as a glob, such as ``sales.[d]rop``. An entry without a kind is about new columns, wider types and other
types (`GENERAL`). The other kinds keep their default until an entry names them, because they would remove or rename
columns of the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from penstock.errors import UsageError
from penstock.suggestions import did_you_mean
from penstock.tables import matches_table

Policy = Literal["evolve", "try_evolve", "lenient", "ignore", "stop"]
"""evolve: the target follows. try_evolve: it follows, and rows become dead letters where it cannot. lenient: the target
only gains columns and wider types. ignore: the target stays. stop: the pipeline fails."""

ChangeKind = Literal["add", "widen", "type", "narrow", "drop", "rename", "nullability", "key"]
"""add: a new column. widen: a type that holds all old values. narrow: one that holds a part of them. type: one with
other values. key: other columns identify a row."""

Entries = str | Sequence[str]
"""The value of `schema_changes`: one entry, or several; none is `DEFAULT`."""

Abilities = Mapping[ChangeKind, tuple[Policy, ...]]
"""The policies that a sink can keep, by kind of change."""

DEFAULT: tuple[str, ...] = ("evolve",)

POLICIES: tuple[Policy, ...] = get_args(Policy)
KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)

GENERAL: Mapping[Policy, Mapping[ChangeKind, Policy]] = {
    # No sink can turn the old values of a column into values of another type.
    "evolve": {"add": "evolve", "widen": "evolve", "type": "stop"},
    "try_evolve": {"add": "try_evolve", "widen": "try_evolve", "type": "try_evolve"},
    "lenient": {"add": "lenient", "widen": "lenient", "type": "lenient"},
    "ignore": {"add": "ignore", "widen": "ignore", "type": "ignore"},
    "stop": {"add": "stop", "widen": "stop", "type": "stop"},
}
"""What a policy means that an entry has without a kind."""


@dataclass(frozen=True, slots=True)
class ChangePolicies:
    """The policy of each kind of change, for one table. The defaults are what the policy *evolve* means."""

    add: Policy = "evolve"
    widen: Policy = "evolve"
    type: Policy = "stop"
    narrow: Policy = "lenient"
    drop: Policy = "lenient"
    rename: Policy = "lenient"
    nullability: Policy = "lenient"
    key: Policy = "stop"

    @property
    def keeps_other_types(self) -> bool:
        """Whether a column of the target stays as it is where the source has another type."""
        return self.type in ("ignore", "lenient")

    @property
    def refuses_rows(self) -> bool:
        """Whether rows become dead letters where the target cannot follow."""
        return "try_evolve" in (self.add, self.widen, self.type)


EVOLVE = ChangePolicies()


class PolicyEntry(NamedTuple):
    """An entry of `schema_changes`. `pattern`: of tables; "" is every table. `kind`: None is `GENERAL`."""

    pattern: str
    kind: ChangeKind | None
    policy: Policy

    @property
    def meant(self) -> Mapping[ChangeKind, Policy]:
        """The policies by kind."""
        return GENERAL[self.policy] if self.kind is None else {self.kind: self.policy}


def policy_entries(schema_changes: Entries) -> tuple[PolicyEntry, ...]:
    """Return the entries of `schema_changes`.

    Raises:
        UsageError: an entry cannot be read, or has no effect.
    """
    return _entries(_texts(schema_changes))


def policies_of(schema_changes: Entries, schema: str, table: str) -> ChangePolicies:
    """Return the policies of a table of the source."""
    return _policies_of(_texts(schema_changes), schema, table)


def check_policies(
    schema_changes: Entries, abilities: Abilities, target: str, *, cannot_move: str = ""
) -> None:
    """Refuse policies that a target cannot keep. `target` names it in messages, such as ``a Delta table``.

    `cannot_move`: why it can neither rename nor drop columns, as a sentence.

    Raises:
        UsageError: the message names the entry and what the target can do.
    """
    entries = policy_entries(schema_changes)
    for pattern in dict.fromkeys(entry.pattern for entry in entries):
        named: dict[ChangeKind, Policy] = {}
        for entry in entries:
            if entry.pattern in ("", pattern):
                named |= entry.meant
        for kind, policy in named.items():
            if policy not in abilities.get(kind, ()):
                reason = cannot_move if kind in ("rename", "drop") and policy == "evolve" else ""
                raise UsageError(_cannot(pattern, kind, policy, abilities.get(kind, ()), target, reason))


def check_plain(schema_changes: Entries, target: str) -> None:
    """Refuse entries for kinds and tables: `target` has no columns of the source.

    Raises:
        UsageError: there is one.
    """
    for entry in policy_entries(schema_changes):
        if entry.pattern or entry.kind:
            raise UsageError(
                f"schema_changes: {target} has the rows of the source as JSON, so no change of a column concerns it: "
                f"leave out {_written(entry)!r}."
            )


def shown(schema_changes: Entries) -> str:
    """Return the entries as one text."""
    return ", ".join(_texts(schema_changes))


def _texts(schema_changes: Entries) -> tuple[str, ...]:
    return (schema_changes,) if isinstance(schema_changes, str) else tuple(schema_changes) or DEFAULT


@lru_cache(maxsize=256)
def _entries(texts: tuple[str, ...]) -> tuple[PolicyEntry, ...]:
    entries = tuple(map(_entry, texts))
    for entry in entries[1:]:
        # It would undo all entries before it.
        if not entry.pattern and entry.kind is None:
            raise UsageError(
                f"schema_changes: the last entry that fits counts, so {entry.policy!r} must be the first one, got "
                f"{', '.join(map(repr, texts))}."
            )
    return entries


def _entry(text: str) -> PolicyEntry:
    name, equals, policy = text.rpartition("=")
    if policy not in POLICIES:
        raise UsageError(
            f"schema_changes: {text!r} must be a policy, one of {', '.join(POLICIES)}, or KIND=POLICY, TABLE=POLICY or "
            f"TABLE.KIND=POLICY with a kind of {', '.join(KINDS)}{did_you_mean(policy, POLICIES) or '.'}"
        )
    pattern, point, last = name.rpartition(".")
    kind: Any = last if last in KINDS else None
    if kind is None:
        pattern = name
    if (equals and not name) or (point and kind and not pattern):
        raise UsageError(
            f"schema_changes: {text!r} names no table: write {policy!r} for all tables, or TABLE={policy}."
        )
    return PolicyEntry(pattern, kind, policy)


@lru_cache(maxsize=8192)
def _policies_of(texts: tuple[str, ...], schema: str, table: str) -> ChangePolicies:
    policies: dict[Any, Any] = {}
    for entry in _entries(texts):
        if not entry.pattern or matches_table((entry.pattern,), schema, table):
            policies |= entry.meant
    return replace(EVOLVE, **policies)


def check_error_output(schema_changes: Entries, *, has_one: bool) -> None:
    """Refuse *try_evolve* for a sink without an error output.

    Raises:
        UsageError: an entry has that policy.
    """
    if not has_one and any(entry.policy == "try_evolve" for entry in policy_entries(schema_changes)):
        raise UsageError(
            "schema_changes=try_evolve needs an error output for the rows that the target cannot take: use "
            "with_exception_handling(), or dead_letters with templates. Or set schema_changes=evolve, which fails."
        )


def _cannot(
    pattern: str, kind: ChangeKind, policy: Policy, allowed: tuple[Policy, ...], target: str, reason: str
) -> str:
    name = f"{pattern}.{kind}" if pattern else kind
    text = f"schema_changes: {target} cannot keep {name}={policy}"
    if not allowed:
        return f"{text}: it does not see such a change. Leave the entry out."
    more = " Or let the whole table wait with on_refused_table=park." if policy == "try_evolve" else ""
    return f"{text}: add {name}={allowed[-1]}, or another one of {', '.join(allowed)}.{more}{reason and f' {reason}'}"


def _written(entry: PolicyEntry) -> str:
    name = ".".join(filter(None, (entry.pattern, entry.kind)))
    return f"{name}={entry.policy}" if name else entry.policy
