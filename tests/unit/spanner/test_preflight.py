from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import SetupError
from penstock.io.spanner.preflight import check_source
from penstock.io.spanner.query import DIALECT, STREAMS, Query
from penstock.io.spanner.source import ChangeStream

STREAM = ChangeStream("p", "i", "d", "Changes", 0, None)


def service(
    dialect: str = "GOOGLE_STANDARD_SQL", streams: tuple[str, ...] = ("Changes",), **options: str
) -> Any:
    def rows(query: Query) -> list[list[str]]:
        if query.sql == DIALECT:
            return [[dialect]]
        if query.sql == STREAMS:
            return [[name] for name in streams]
        return [[name, value] for name, value in options.items()]

    return rows


def test_options_of_a_readable_stream_are_returned() -> None:
    assert check_source(STREAM, service(value_capture_type="NEW_ROW")) == {"value_capture_type": "NEW_ROW"}


def test_names_are_compared_as_spanner_does() -> None:
    assert check_source(STREAM, service(streams=("CHANGES",))) == {}


def test_postgresql_dialect_is_refused_before_anything_is_read() -> None:
    with pytest.raises(SetupError, match="has the dialect POSTGRESQL; this reader knows GoogleSQL"):
        check_source(STREAM, service(dialect="POSTGRESQL"))


def test_unknown_stream_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(SetupError, match=r"no change stream 'Changes' .*there are: Audit, Other\)"):
        check_source(STREAM, service(streams=("Other", "Audit")))
    with pytest.raises(SetupError, match=r"there are: none"):
        check_source(STREAM, service(streams=()))


def test_modes_that_are_not_supported_are_refused() -> None:
    with pytest.raises(SetupError, match="partition_mode MUTABLE_KEY_RANGE"):
        check_source(STREAM, service(partition_mode="MUTABLE_KEY_RANGE"))
    with pytest.raises(SetupError, match="per_placement_tvf"):
        check_source(STREAM, service(per_placement_tvf="true"))
