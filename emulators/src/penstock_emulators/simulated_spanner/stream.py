"""One change stream of a database: its definition, its functions, and their partitions.

A stream has one function. With `per_placement_tvf` it has one for each placement, and each function has its
own tokens and partitions (Spanner documentation, "Geo-partitioning"; apache/beam#38167).
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable

from penstock_emulators.simulated_spanner.column_type import POSTGRESQL
from penstock_emulators.simulated_spanner.key_ranges import ImmutableRanges, KeyRanges, MutableRanges
from penstock_emulators.simulated_spanner.schema import DEFAULT_PLACEMENT, MUTABLE, StreamDefinition
from penstock_emulators.simulated_spanner.timestamp import SECOND

_ALPHABET = string.ascii_letters + string.digits + "-_"
_TOKEN_LENGTH = 44


class ChangeStream:
    """The state of a stream. `functions` are the key ranges by placement; "" is the one of all placements."""

    def __init__(
        self,
        definition: StreamDefinition,
        placements: list[str],
        *,
        created: int,
        partitions: int,
        rng: random.Random,
    ) -> None:
        self.definition = definition
        self.created = created
        self.retention_override: int | None = None
        # Each stream has its own generator: the tokens of one do not depend on the churn of another.
        self._new_token = _tokens(rng)
        names = [DEFAULT_PLACEMENT, *placements] if definition.has("per_placement_tvf") else [""]
        self.functions: dict[str, KeyRanges] = {}
        for name in names:
            self.add_function(name, created, partitions)

    def add_function(self, placement: str, timestamp: int, partitions: int) -> None:
        """Begin the function of a placement, unless it is there."""
        kind = MutableRanges if self.definition.partition_mode == MUTABLE else ImmutableRanges
        if placement not in self.functions:
            self.functions[placement] = kind(timestamp, partitions, self._new_token)

    @property
    def retention(self) -> int:
        """How long records can be read, in nanoseconds."""
        if self.retention_override is not None:
            return self.retention_override
        return self.definition.retention_seconds * SECOND

    def function_name(self, placement: str, dialect: str) -> str:
        """Return the name of a function that reads the stream."""
        suffix = f"_{placement}" if placement else ""
        if dialect != POSTGRESQL:
            return f"READ_{self.definition.name}{suffix}"
        kind = "proto_bytes" if self.definition.partition_mode == MUTABLE else "json"
        return f"read_{kind}_{self.definition.name}{suffix}"

    def ranges_of(self, placement: str) -> KeyRanges:
        """Return the key ranges that rows of a placement belong to."""
        return self.functions.get(placement) or self.functions.get("") or self.functions[DEFAULT_PLACEMENT]


def _tokens(rng: random.Random) -> Callable[[], str]:
    return lambda: "".join(rng.choices(_ALPHABET, k=_TOKEN_LENGTH))
