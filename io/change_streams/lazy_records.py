"""`LazyRecords`: many records that are made when they are asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar, TypeGuard, TypeVar

RecordT = TypeVar("RecordT")


class LazyRecords(Sequence[RecordT]):
    """The records of one claim. A consumer that knows their class may read them without making records."""

    __slots__ = ()
    is_batch: ClassVar[bool] = True
    """Whether they are a batch of their own, because there are enough of them."""

    @property
    def newest(self) -> int:
        """The commit timestamp of the last one, nanoseconds since 1970."""
        raise NotImplementedError

    @property
    def times_us(self) -> list[int]:
        """The commit timestamps of all of them, microseconds since 1970."""
        raise NotImplementedError

    def tables_read(self) -> Iterable[Any]:
        """Return the tables of the records, each once; without making records."""
        raise NotImplementedError


_PLAIN = frozenset({list, tuple, type(None)})


def is_lazy(records: Any) -> TypeGuard[LazyRecords[Any]]:
    """Return whether records are lazy. Called for each step."""
    # `isinstance` costs ten times as much for a class with an abstract base.
    return type(records) not in _PLAIN and isinstance(records, LazyRecords)


class JoinedRecords(Sequence[Any]):
    """Several sequences as one, without making records. No part is empty."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Sequence[Any]]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: Any) -> Any:
        # Counters ask for the first record of a batch, to learn its size.
        return self.parts[0][0] if index == 0 else list(self)[index]

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.parts)

    def __reduce__(self) -> Any:
        return JoinedRecords, (self.parts,)


def are_lazy(records: Any) -> bool:
    """Return whether a batch has lazy records, alone or joined with others."""
    return type(records) is JoinedRecords or is_lazy(records)


def parts_of(records: Sequence[RecordT]) -> list[Sequence[RecordT]]:
    """Return the sequences that were joined; otherwise the sequence alone."""
    return records.parts if isinstance(records, JoinedRecords) else [records]


def joined(parts: list[Sequence[RecordT]]) -> Sequence[RecordT]:
    """Return one or several sequences as one."""
    return parts[0] if len(parts) == 1 else JoinedRecords(parts)
