"""Names of state runs tell who wrote them."""

from __future__ import annotations

import pytest

from penstock.runner.protocol import RunName
from penstock.runner.protocol.names import run_age, run_key_groups


def test_a_name_is_parsed_to_its_age_and_key_groups():
    name = RunName(12, 17, "9f2c", "Count").file_name(64, 127)
    assert run_age(name) == (12, 17)
    assert run_key_groups(name) == range(64, 128)


def test_each_part_of_a_run_name_changes_the_file_name():
    names = [
        RunName(1, 2, "a", "s"),
        RunName(2, 2, "a", "s"),
        RunName(1, 3, "a", "s"),
        RunName(1, 2, "b", "s"),
    ]
    names.append(RunName(1, 2, "a", "t"))
    assert len({name.file_name(0, 7) for name in names} | {names[0].file_name(8, 15)}) == 6


@pytest.mark.parametrize("name", ["notes.txt", ".tmp-123", "1-2-a-0123456789abcdef-00000-00001.run", "x.run"])
def test_a_file_with_another_name_has_no_age(name):
    assert run_age(name) is None
    assert run_key_groups(name) is None


@pytest.mark.parametrize("nonce", ["", "a-b", "A", "a/b"])
def test_a_nonce_that_would_not_fit_into_a_name_is_refused(nonce):
    with pytest.raises(ValueError, match=r"digits and lower-case letters"):
        RunName(1, 1, nonce, "s")
