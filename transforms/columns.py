"""Choose, rename and mask columns of events. The rules are pure functions of one event.

An event of Bigtable holds its values twice, in `after` and in `cells`, so columns are dropped and masked in both.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from penstock.errors import UsageError
from penstock.event import CellChange, ChangeEvent, Column, ColumnType, Image, Kind, TableSchema
from penstock.event.keys import Rule, key_rules
from penstock.transforms.element_transform import ElementTransform
from penstock.transforms.tables import TablePattern, matches, pattern_names


class SelectColumns(ElementTransform):
    """Keeps only some columns of the images and of the schema.

        events | SelectColumns(only=["Id", "State"], table="Orders")
        events | SelectColumns(without=["Note"])

    Give `only` or `without`. Key columns always stay, because an event without its key cannot be applied. Events of
    tables that `table` (a name, a glob such as ``sales.*``, or several) does not match pass unchanged. A deletion of a
    Bigtable family stays if it concerns a column that stays.

    Raises ValueError while running for an entry of a Bigtable change that this version does not know, because it may
    hold a column that was left out.
    """

    def __init__(
        self,
        *,
        only: Iterable[str] | None = None,
        without: Iterable[str] | None = None,
        table: TablePattern = "*",
    ) -> None:
        # Both at once would be ambiguous for a column that is in neither list.
        if (only is None) == (without is None):
            raise UsageError("SelectColumns: give either only=[…] or without=[…]")
        kept, left_out = tuple(only or ()), tuple(without or ())
        self._given = {"only": kept, "without": left_out, "table": pattern_names(table)}
        super().__init__(_Select(frozenset(kept), only is not None, frozenset(left_out), table), ChangeEvent)

    def display_data(self) -> dict[str, Any]:
        return {name: ", ".join(names) for name, names in self._given.items() if names}


class RenameColumns(ElementTransform):
    """Renames columns in the key, the images and the schema.

        events | RenameColumns({"OrderId": "order_id"}, table="Orders")

    The `cells` of a Bigtable change keep their families and qualifiers.

    Raises UsageError if two columns get one name, and ValueError while running if another column of the table already
    has a new name.
    """

    def __init__(self, names: Mapping[str, str], *, table: TablePattern = "*") -> None:
        # Checked at construction: two columns in one would lose a value without an error.
        if len(set(names.values())) != len(names):
            raise UsageError(f"RenameColumns gives two columns one name: {dict(names)}")
        self._names, self._table = dict(names), table
        super().__init__(_Rename(self._names, table), ChangeEvent)

    def display_data(self) -> dict[str, Any]:
        names = ", ".join(f"{old}: {new}" for old, new in self._names.items())
        return {"names": names, "table": ", ".join(pattern_names(self._table))}


class MaskColumns(ElementTransform):
    """Hides values of columns: hashed with a key, redacted, or truncated.

        events | MaskColumns({"Email": hashed(b"key"), "Note": redacted(), "Phone": truncated(4)})

    NULL stays NULL, and a column that was not sent stays unsent. A masked column of the primary key is masked in
    the key too: use `hashed`, which keeps different keys different. Masked columns become STRING columns.

    Raises ValueError while running for an entry of a Bigtable change that this version does not know, because it may
    hold a value to hide.
    """

    def __init__(self, masks: Mapping[str, Mask], *, table: TablePattern = "*") -> None:
        self._names, self._table = tuple(masks), table
        super().__init__(_Mask(dict(masks), table), ChangeEvent)

    def display_data(self) -> dict[str, Any]:
        # The columns only: a mask holds its secret key.
        return {"masks": ", ".join(self._names), "table": ", ".join(pattern_names(self._table))}


class Mask(msgspec.Struct, frozen=True):
    """A rule that hides a value; made by `hashed`, `redacted` and `truncated`."""

    apply: Callable[[Any], Any]

    def __repr__(self) -> str:
        return "<mask>"


def hashed(key: bytes | Callable[[], bytes]) -> Mask:
    """Return a mask that replaces a value by the HMAC-SHA-256 of its text, 64 hexadecimal digits.

    Equal values have equal hashes, so the column can still be joined on. The `key` is secret and has at least 16
    bytes; without it a reader cannot guess values. It may be a function that returns the key; the function is called
    when the mask is pickled, on the computer that submits the pipeline. Integers, decimals, texts and bytes are hashed
    as text or bytes, everything else by its `repr`.
    """
    return Mask(_Hash(key if callable(key) else checked_key(key)))


def checked_key(key: bytes) -> bytes:
    """Return the key of a hash.

    Raises:
        UsageError: it has fewer than 16 bytes.
    """
    # A short key could be found by trying all of them; 16 bytes are 128 bits.
    if len(key) < 16:
        raise UsageError(f"hashed() needs a secret key of at least 16 bytes; this one has {len(key)}")
    return key


def redacted(text: str = "***") -> Mask:
    """Return a mask that replaces each value by `text`."""
    return Mask(_Constant(text))


def truncated(length: int) -> Mask:
    """Return a mask that keeps the first `length` characters of a value's text."""
    # A negative length would cut from the end, by Python's rules for slices.
    if length < 0:
        raise UsageError(f"truncated() needs a length of at least 0, not {length}")
    return Mask(_Truncate(length))


class _Hash:
    def __init__(self, key: bytes | Callable[[], bytes]) -> None:
        self._key = key

    def __getstate__(self) -> dict[str, Any]:
        # Workers may not have the file or the variable that the function reads, so the key itself goes to them.
        try:
            return {"_key": self._secret()}
        except UsageError:
            # Beam pickles a function already when it is applied (`ParDo.__init__`, 2.77), also if the pipeline is only
            # validated. A pipeline that runs has read the key before, in its preflight.
            return {"_key": self._key}

    def __call__(self, value: Any) -> str:
        return hmac.new(self._secret(), _as_bytes(value), hashlib.sha256).hexdigest()

    def _secret(self) -> bytes:
        # Read once per process, and the function is replaced by its result.
        if callable(self._key):
            self._key = checked_key(self._key())
        return self._key


class _Constant:
    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, value: Any) -> str:
        return self._text


class _Truncate:
    def __init__(self, length: int) -> None:
        self._length = length

    def __call__(self, value: Any) -> str:
        # Bytes that are not UTF-8 still need a text, and an error would show the value in the message of a dead
        # letter.
        text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
        return text[: self._length]


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    # `surrogatepass`: a text from a source may have a lone surrogate, and a mask must not fail on it.
    # The text of a decimal outside of the key keeps its scale: 1.50 and 1.5 differ.
    return (value if isinstance(value, str) else str(value)).encode("utf-8", "surrogatepass")


class _Select:
    def __init__(
        self, only: frozenset[str], has_only: bool, without: frozenset[str], table: TablePattern
    ) -> None:
        self._only, self._has_only, self._without, self._table = only, has_only, without, table

    def __call__(self, event: ChangeEvent) -> list[ChangeEvent]:
        if not matches(self._table, event.source):
            return [event]
        # The change of a Bigtable row may delete cells of columns that the schema does not list, so it is
        # looked at also if no column is dropped.
        dropped = self._dropped(event.schema)
        if not dropped and not event.cells:
            return [event]
        schema = _without_columns(event.schema, dropped)
        before, after = _without_values(event.before, dropped), _without_values(event.after, dropped)
        cells = tuple(cell for cell in event.cells if self._keeps(event, cell))
        return [msgspec.structs.replace(event, schema=schema, before=before, after=after, cells=cells)]

    def _keeps(self, event: ChangeEvent, cell: CellChange) -> bool:
        # A deletion names columns that are not in the schema of the event, so the choice is made for each cell.
        column = cell.column
        if column is not None:
            return column in self._only if self._has_only else column not in self._without
        _check_known(event, cell)
        # A cell without a column is a deletion of a whole family, or an entry of an unknown kind.
        return not self._has_only or any(name.startswith(f"{cell.family}:") for name in self._only)

    def _dropped(self, schema: TableSchema) -> frozenset[str]:
        return frozenset(
            column.name
            for column in schema
            # Key columns stay: a consumer cannot apply an event without its key.
            if column.key_position is None
            and (column.name not in self._only if self._has_only else column.name in self._without)
        )


class _Rename:
    def __init__(self, names: dict[str, str], table: TablePattern) -> None:
        self._names, self._table = names, table

    def __call__(self, event: ChangeEvent) -> list[ChangeEvent]:
        if not matches(self._table, event.source):
            return [event]
        schema = _renamed_schema(event.schema, tuple(self._names.items()))
        images = (self._image(event.key), self._image(event.before), self._image(event.after))
        key, before, after = images
        return [msgspec.structs.replace(event, schema=schema, key=key, before=before, after=after)]

    def _image(self, image: Image | None) -> Image | None:
        return (
            # A name that is not in the mapping stays, so one mapping serves tables that have only some of its
            # columns.
            None if image is None else {self._names.get(name, name): value for name, value in image.items()}
        )


class _Mask:
    def __init__(self, masks: dict[str, Mask], table: TablePattern) -> None:
        self._masks, self._table = masks, table

    def __call__(self, event: ChangeEvent) -> list[ChangeEvent]:
        if not matches(self._table, event.source):
            return [event]
        schema = _text_columns(event.schema, frozenset(self._masks))
        # Keys hold canonical values, and the images of a key column must show the same text.
        rules = dict(key_rules(event.schema))
        key, before, after = (self._image(each, rules) for each in (event.key, event.before, event.after))
        cells = tuple(self._cell(event, cell) for cell in event.cells)
        return [
            msgspec.structs.replace(event, schema=schema, key=key, before=before, after=after, cells=cells)
        ]

    def _cell(self, event: ChangeEvent, cell: CellChange) -> CellChange:
        column = cell.column
        # The column may be hidden by a mask that this version cannot apply, so the event is rejected instead of
        # passed on.
        if column is None:
            _check_known(event, cell)
        mask = self._masks.get(column or "")
        if mask is None or cell.value is None:
            return cell
        return msgspec.structs.replace(cell, value=_as_bytes(mask.apply(cell.value)))

    def _image(self, image: Image | None, rules: dict[str, Rule]) -> Image | None:
        # The image of a CREATE has no `before`, and the image of a DELETE has no `after`.
        if image is None:
            return None
        masked = dict(image)
        for name, mask in self._masks.items():
            # NULL shows no value, and a column that was not sent stays unsent: a mask would turn both into a
            # text.
            value = masked.get(name)
            if value is not None:
                masked[name] = mask.apply(rules[name](value) if name in rules else value)
        return masked


def _check_known(event: ChangeEvent, cell: CellChange) -> None:
    if cell.mod == "UNKNOWN":
        raise ValueError(
            f"a change of {event.source.table} has an entry of a kind that this version does not know, so its columns "
            "can be neither chosen nor masked"
        )


def _without_values(image: Image | None, dropped: frozenset[str]) -> Image | None:
    return None if image is None else {name: value for name, value in image.items() if name not in dropped}


# A table has one schema for millions of events, so each changed schema is made once.
@lru_cache(maxsize=1024)
def _without_columns(schema: TableSchema, dropped: frozenset[str]) -> TableSchema:
    return TableSchema(tuple(column for column in schema if column.name not in dropped))


@lru_cache(maxsize=1024)
def _renamed_schema(schema: TableSchema, names: tuple[tuple[str, str], ...]) -> TableSchema:
    new_names = dict(names)
    columns = tuple(
        msgspec.structs.replace(column, name=new_names.get(column.name, column.name)) for column in schema
    )
    # Two columns of one name would make one of them disappear from each image.
    if len({column.name for column in columns}) != len(columns):
        raise ValueError(
            f"RenameColumns gives a column a name that the table already has: {schema.names} with {new_names}"
        )
    return TableSchema(columns)


@lru_cache(maxsize=1024)
def _text_columns(schema: TableSchema, masked: frozenset[str]) -> TableSchema:
    # Masks return texts, so a consumer must not expect the type of the column before.
    text = ColumnType(Kind.STRING, "masked")
    return TableSchema(
        tuple(
            Column(column.name, text, column.nullable, column.key_position)
            if column.name in masked
            else column
            for column in schema
        )
    )
