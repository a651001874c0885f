"""However the service cuts the rows of a read into messages, the reader gives the same rows."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.io.spanner.initial_scan.frontier import KeyRange, ScanFrontier, Table
from penstock.io.spanner.initial_scan.rows import RowReader
from penstock.io.spanner.initial_scan.tracker import ScanCoder
from penstock.io.spanner.tracker import FrontierCoder
from tests.unit.spanner.initial_scan.test_rows import ARRAY, FLOAT64, INT64, STRING, message

COLUMNS = [("K", INT64), ("F", FLOAT64), ("A", (ARRAY, STRING)), ("S", STRING)]
TABLE = Table("T", tuple(name for name, _ in COLUMNS), (1, 2, 3, 4), 1)

texts = st.none() | st.text(max_size=200)
rows = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1).map(str),
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.none() | st.lists(texts, max_size=4),
        texts,
    ),
    max_size=8,
)


@st.composite
def messages(draw: Any, values: list[Any]) -> list[Any]:
    """Cut values into messages; a text may be cut too."""
    found, current = [message(COLUMNS)], []
    for value in values:
        if isinstance(value, str) and draw(st.booleans()):
            cut = draw(st.integers(0, len(value)))
            found.append(message(values=(*current, value[:cut]), chunked_value=True))
            current, value = [], value[cut:]
        elif draw(st.integers(0, 4)) == 0:
            found.append(message(values=tuple(current)))
            current = []
        current.append(value)
    return [*found, message(values=tuple(current))]


@given(st.data())
def test_any_cut_gives_the_same_rows_and_the_key_of_the_last_one(data: st.DataObject) -> None:
    given_rows = data.draw(rows)
    cut = data.draw(messages([value for row in given_rows for value in row]))
    reader, found, last = RowReader(TABLE, 7), [], ""
    for each in cut:
        for part in reader.feed(each.SerializeToString()):
            found += [(json.loads(mod.keys), json.loads(mod.new_values)) for mod in part.record.mods]
            last = part.last_key
    reader.finish()
    assert found == [({"K": k}, {"F": f, "A": a, "S": s}) for k, f, a, s in given_rows]
    assert json.loads(last or "[]") == ([given_rows[-1][0]] if given_rows else [])


keys = st.sampled_from(["", '["1"]', '["x",null]', "[]"])
ranges = st.dictionaries(
    st.integers(0, 300), st.builds(KeyRange, st.integers(0, 2), keys, keys, st.booleans()), max_size=12
)


@given(ranges, st.integers(1, 6))
def test_deal_then_join_is_identity_and_survives_the_coder(given_ranges: dict[int, KeyRange], n: int) -> None:
    whole = ScanFrontier(7, (TABLE,), given_ranges)
    coder = ScanCoder(FrontierCoder())
    parts = [coder.decode(coder.encode(part)) for part in whole.deal(n)]
    assert len(parts) <= n
    assert ScanFrontier.join(parts) == whole
    lengths = [len(part.ranges) for part in parts]
    assert max(lengths) - min(lengths) <= 1
