"""The coder of Spanner's records: every record survives it, and equal records have equal bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.io.spanner import ColumnType, DataChangeRecord, DataChangeRecordCoder, Mod, Mods

texts = st.text(max_size=20)
numbers = st.integers(0, 2**32 - 1)
sides = st.one_of(
    st.sampled_from(("", "{}")),
    st.dictionaries(texts, st.one_of(st.none(), texts, st.booleans()), max_size=3).map(
        lambda values: json.dumps(values, ensure_ascii=False)
    ),
)
columns = st.builds(
    ColumnType,
    texts,
    st.sampled_from(('{"code":"INT64"}', '{"array_element_type":{"code":"STRING"},"code":"ARRAY"}')),
    st.booleans(),
    st.integers(1, 1000),
)
records = st.builds(
    DataChangeRecord,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 10**8 - 1).map("{:08d}".format),
    texts,
    st.booleans(),
    texts,
    st.lists(columns, max_size=4).map(tuple),
    st.lists(st.builds(Mod, sides, sides, sides), max_size=5).map(Mods.of),
    st.sampled_from(("INSERT", "UPDATE", "DELETE")),
    st.sampled_from(("OLD_AND_NEW_VALUES", "NEW_ROW")),
    numbers,
    numbers,
    texts,
    st.booleans(),
)
coder = DataChangeRecordCoder()


@given(records)
def test_decoding_an_encoding_gives_the_record_back(record: DataChangeRecord) -> None:
    decoded = coder.decode(coder.encode(record))
    assert decoded == record
    assert all(type(mod) is Mod for mod in decoded.mods)


@given(records, records)
def test_records_have_equal_bytes_only_when_they_are_equal(
    one: DataChangeRecord, two: DataChangeRecord
) -> None:
    assert (coder.encode(one) == coder.encode(two)) == (one == two)


@given(records, st.sampled_from((0, 1, 255, 256, 65_535, 65_536, 200_000)))
def test_texts_of_any_length_survive(record: DataChangeRecord, length: int) -> None:
    longer = replace(record, mods=Mods.of([*record.mods, Mod("{}", "ü" * length, "")]))
    assert coder.decode(coder.encode(longer)) == longer


@given(records)
def test_records_of_an_unknown_version_are_refused(record: DataChangeRecord) -> None:
    with pytest.raises(ValueError, match="format version 2 cannot be read"):
        coder.decode(b"\x02" + coder.encode(record)[1:])


def test_a_typical_record_is_smaller_than_its_json() -> None:
    mods = Mods.of(Mod(f'{{"Id":"{n}"}}', '{"V":"value"}', '{"V":"other"}') for n in range(100))
    record = DataChangeRecord(
        1, "0", "1", True, "T", (), mods, "UPDATE", "OLD_AND_NEW_VALUES", 1, 1, "", False
    )
    assert len(coder.encode(record)) < len(json.dumps([*mods])) * 0.85
