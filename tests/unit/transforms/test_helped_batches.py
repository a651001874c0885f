"""Batches of which helpers make some: the outputs are those of a task that works alone, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from apache_beam.pvalue import TaggedOutput
from hypothesis import given
from hypothesis import strategies as st

from penstock.batches import ElementBatch
from penstock.helpers import helped_by
from penstock.io.change_streams.lazy_records import JoinedRecords
from penstock.transforms.element_transform import _BatchFn, _HandlingBatchFn

BAD = -1
"""An element for which the function raises."""
ROWS = 120
"""Enough to be sent."""


def double(element: int) -> list[int]:
    if element == BAD:
        raise ValueError("bad")
    return [2 * element]


def double_all(elements: list[int], times_us: list[int]) -> tuple[list[int], list[int]]:
    return [each for element in elements for each in double(element)], times_us


class Later(Future[Any]):
    """An answer that comes when somebody waits for it."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        super().__init__()
        self._answer_later = answer

    def result(self, timeout: float | None = None) -> Any:
        return self._answer_later()


class PlannedHelpers:
    """Does with each call what a plan says: it is `busy`, or answers `now` or `later`, or is `lost`."""

    def __init__(self, plan: list[str]) -> None:
        self._plan = plan

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any] | None:
        what = self._plan.pop(0) if self._plan else "busy"
        if what == "busy":
            return None
        if what == "later":
            return Later(lambda: function(*arguments))
        answer = Future[Any]()
        try:
            if what == "lost":
                raise OSError
            answer.set_result(function(*arguments))
        except Exception as error:
            answer.set_exception(error)
        return answer


def outputs(fn: _BatchFn, batches: list[ElementBatch], plan: list[str] | None) -> list[tuple[str, Any]]:
    """Return the single outputs of a bundle; of dead letters the element."""
    with helped_by(None if plan is None else PlannedHelpers(list(plan))):
        fn.start_bundle()
        made = [output for batch in batches for output in fn.process(batch)]
        made += fn.finish_bundle()
    singles: list[tuple[str, Any]] = []
    for output in made:
        if isinstance(output, TaggedOutput):
            singles.append((output.tag, output.value.value[0]))
        else:
            singles += [("", pair) for pair in zip(*output.value, strict=True)]
    return singles


@st.composite
def bundles(draw: st.DrawFn) -> list[ElementBatch]:
    """Batches in which some are too small or not lazy, and some have bad elements."""
    batches = []
    for number in range(draw(st.integers(1, 15))):
        rows = draw(st.sampled_from([1, ROWS]))
        elements: Any = list(range(number * ROWS, number * ROWS + rows))
        if draw(st.integers(0, 5)) == 0:
            elements[draw(st.integers(0, rows - 1))] = BAD
        lazy = draw(st.booleans())
        batches.append(ElementBatch(JoinedRecords([elements]) if lazy else elements, [number] * rows))
    return batches


@given(bundles(), st.lists(st.sampled_from(["busy", "now", "later", "lost"]), max_size=15))
def test_the_outputs_are_those_of_a_task_that_works_alone(
    batches: list[ElementBatch], plan: list[str]
) -> None:
    fn = _HandlingBatchFn(double, double_all)
    assert outputs(fn, batches, plan) == outputs(fn, batches, None)


def test_a_bundle_that_failed_leaves_nothing_for_the_next_one() -> None:
    def batch(element: int) -> ElementBatch:
        return ElementBatch(JoinedRecords([[element] * ROWS]), [0] * ROWS)

    fn = _BatchFn(double, double_all)
    with helped_by(PlannedHelpers(["later"])):
        fn.start_bundle()
        assert list(fn.process(batch(1))) == []
    assert outputs(fn, [batch(2)], None) == [("", (4, 0))] * ROWS
