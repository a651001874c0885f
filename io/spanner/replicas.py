"""Directed reads: which replicas of the database answer the queries. Pure.

Source: google/spanner/v1/spanner.proto, DirectedReadOptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import UsageError

TYPES = ("READ_WRITE", "READ_ONLY")
_REPLICA = re.compile(r"([a-z][a-z0-9-]*)?(?::([A-Z_]+))?")
_MAX_REPLICAS = 10
"""The service accepts at most so many selections."""


@dataclass(frozen=True, slots=True)
class Replica:
    """Replicas in one location, or of one type, or both; empty: any."""

    location: str
    type: str


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas that may answer, in the order of preference, or those that may not; empty: the service chooses.

    `auto_failover`: whether other replicas answer while none of `include` can.
    """

    include: tuple[Replica, ...] = ()
    exclude: tuple[Replica, ...] = ()
    auto_failover: bool = True

    @classmethod
    def checked(cls, include: Iterable[str], exclude: Iterable[str], auto_failover: bool) -> Replicas:
        """Return the replicas that the arguments describe; each is ``location``, ``location:type`` or ``:type``.

        Raises:
            UsageError: an argument is malformed, or both lists are given.
        """
        included = tuple([_replica("include_replicas", each) for each in _list("include_replicas", include)])
        excluded = tuple([_replica("exclude_replicas", each) for each in _list("exclude_replicas", exclude)])
        if included and excluded:
            raise UsageError("include_replicas and exclude_replicas are both given: pass one of them")
        if not auto_failover and not included:
            raise UsageError(
                "auto_failover=False is for include_replicas: pass them, or leave auto_failover out"
            )
        if max(len(included), len(excluded)) > _MAX_REPLICAS:
            raise UsageError(
                f"Spanner accepts at most {_MAX_REPLICAS} replicas in include_replicas or exclude_replicas"
            )
        return cls(included, excluded, auto_failover)


def _list(name: str, values: Iterable[str]) -> list[str]:
    if isinstance(values, str):
        raise UsageError(f"{name}={values!r} is not a list of texts: pass a list, such as [{values!r}]")
    return list(values)


def _replica(name: str, text: str) -> Replica:
    parts = _REPLICA.fullmatch(text) if isinstance(text, str) else None
    if not text or parts is None or (parts[2] is not None and parts[2] not in TYPES):
        raise UsageError(
            f"{name} has {text!r}: pass a location (us-east1), a location and a type (us-east1:READ_ONLY), or a type "
            f"(:READ_ONLY); types are {' and '.join(TYPES)}"
        )
    return Replica(parts[1] or "", parts[2] or "")
