"""With the caches of the tests, Beam sees each DoFn as it does without them."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.transforms import userstate

ONE = userstate.ReadModifyWriteStateSpec("one", VarIntCoder())
TWO = userstate.ReadModifyWriteStateSpec("two", VarIntCoder())


class OneFn(beam.DoFn):
    def process(self, element: Any, state: Any = beam.DoFn.StateParam(ONE)) -> Iterator[Any]:
        yield element


class InheritingFn(OneFn):
    """Has the state of its base."""


class PlainFn(beam.DoFn):
    def process(self, element: Any) -> Iterator[Any]:
        yield element


class ForwardingFn(beam.DoFn):
    """Has the methods of another DoFn."""

    def __init__(self, other: beam.DoFn) -> None:
        self._other = other

    @property
    def process(self) -> Any:
        return self._other.process


def test_a_dofn_has_the_states_of_its_methods_each_time() -> None:
    for _ in range(2):
        assert userstate.get_dofn_specs(OneFn()) == ({ONE}, set())
        assert userstate.get_dofn_specs(InheritingFn()) == ({ONE}, set())
        assert userstate.get_dofn_specs(PlainFn()) == (set(), set())


def test_the_answer_is_not_shared() -> None:
    states, _ = userstate.get_dofn_specs(OneFn())
    states.add(TWO)
    assert userstate.get_dofn_specs(OneFn()) == ({ONE}, set())


def test_dofns_of_a_class_may_have_other_methods() -> None:
    assert userstate.get_dofn_specs(ForwardingFn(PlainFn())) == (set(), set())
    assert userstate.get_dofn_specs(ForwardingFn(OneFn())) == ({ONE}, set())
    plain = PlainFn()
    assert userstate.get_dofn_specs(plain) == (set(), set())
    plain.process = types.MethodType(OneFn.process, plain)  # type: ignore[method-assign]
    assert userstate.get_dofn_specs(plain) == ({ONE}, set())
