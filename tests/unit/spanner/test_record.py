"""Records show their changes lazily, compare by value, and keep values out of messages."""

from __future__ import annotations

import pickle

import pytest

from penstock.io.spanner.record import ColumnType, Mod, Mods

TEXTS = ('{"K":"1"}', '{"V":null}', "{}", '{"K":"2"}', "", '{"V":"2"}')
MODS = Mods(TEXTS)


def test_mods_are_a_sequence_of_mods() -> None:
    first, second = Mod(*TEXTS[:3]), Mod(*TEXTS[3:])
    assert list(MODS) == [first, second]
    assert (MODS[0], MODS[1], MODS[-1], len(MODS)) == (first, second, second, 2)
    assert MODS[1:] == Mods.of([second])
    with pytest.raises(IndexError):
        MODS[2]


def test_mods_equal_any_sequence_of_the_same_mods() -> None:
    assert Mods.of(MODS) == MODS == tuple(MODS)
    assert hash(MODS) == hash(Mods.of(MODS)) == hash(tuple(MODS))
    assert MODS[:1] != MODS
    assert MODS != 7
    assert pickle.loads(pickle.dumps(MODS)) == MODS


def test_mods_show_no_values_in_messages() -> None:
    assert repr(MODS) == "<2 mods>"


def test_a_mod_is_parsed_when_asked_and_a_null_side_is_empty() -> None:
    assert MODS[0].parsed() == ({"K": "1"}, {"V": None}, {})
    assert MODS[1].parsed() == ({"K": "2"}, {}, {"V": "2"})


def test_a_column_type_names_its_code() -> None:
    array = ColumnType("A", '{"array_element_type":{"code":"STRING"},"code":"ARRAY"}', False, 2)
    assert array.code == "ARRAY"
