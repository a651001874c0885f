"""To which versions the tables of a target go back, decided from what their commits say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.rewind import CommitOfTable, RewindPlan, TableRewind, plan_of_logs, plan_of_rows, versions_of


@st.composite
def histories(
    draw: st.DrawFn,
) -> tuple[dict[str, list[CommitOfTable]], dict[str, dict[int, int]], dict[str, int]]:
    """Draw records that are complete until times which never fall, and tables that get rows and marks with some.

    Returns the commits of each table, newest first; until when each version really is complete; and the last mark.
    """
    times = sorted(draw(st.lists(st.integers(1, 30), min_size=2, max_size=12)))
    commits, complete, marks = {}, {}, {}
    for name in draw(st.sampled_from(("a", "ab", "abc"))):
        found, known = [], None
        for record, until in enumerate(times):
            if draw(
                st.booleans()
            ):  # the rows of a record come after it is known until when the one before was complete
                found.append(CommitOfTable(record, times[record] + draw(st.integers(0, 5)), known))
            if draw(st.booleans()):
                known = until
        if found and known is not None:
            ends = [*(later.number - 1 for later in found[1:]), len(times) - 1]
            complete[name] = {each.number: times[max(end, 0)] for each, end in zip(found, ends, strict=True)}
            commits[name], marks[name] = found[::-1], known
    return commits, complete, marks


@given(histories(), st.integers(1, 30))
def test_each_table_has_every_change_before_the_time_from_which_changes_are_read_again(
    history, to: int
) -> None:
    commits, complete, marks = history
    tables = {name: versions_of(each, marks[name]) for name, each in commits.items()}
    try:
        plan = plan_of_rows(tables, to)
    except UsageError:
        return
    assert plan.to_us <= to
    for table in plan.tables:
        assert table.version is not None
        assert complete[table.name][table.version] >= plan.to_us
        # Nothing of it comes from after the time.
        version = next(each for each in tables[table.name] if each.number == table.version)
        assert version.committed_us <= to


def versions(*known: tuple[int, int | None], newest: int | None = None):
    """Return versions from the time of each commit and what was known then, the newest last."""
    commits = [CommitOfTable(number, committed, us) for number, (committed, us) in enumerate(known)]
    return versions_of(commits[::-1], newest)


HISTORY = versions((1, None), (11, 10), (21, 20), (31, 30), (41, 40))


def test_the_version_that_is_complete_until_the_latest_time_is_chosen_and_of_several_the_oldest() -> None:
    assert plan_of_rows({"t": HISTORY}, 35) == RewindPlan(35, (TableRewind("t", 3, 31),))
    repeated = versions((1, None), (11, 10), (21, 20), (22, 20), (41, 20), (51, 40))
    assert plan_of_rows({"t": repeated}, 35) == RewindPlan(20, (TableRewind("t", 1, 11),))


def test_an_idle_table_keeps_its_newest_version_and_does_not_hold_the_others() -> None:
    idle = versions((1, None), (11, 10), newest=90)
    plan = plan_of_rows({"busy": HISTORY, "idle": idle}, 35)
    assert plan == RewindPlan(35, (TableRewind("busy", 3, 31), TableRewind("idle", 1, 11)))


def test_the_slowest_table_decides_the_time_for_all() -> None:
    slow = versions((1, None), (30, 5), (36, 12), (90, 80))
    assert plan_of_rows({"t": HISTORY, "slow": slow}, 35).to_us == 12


def test_a_version_may_have_changes_from_after_the_time_until_which_it_is_complete() -> None:
    # A change from 37 came at 38, when another partition had been read until 33 only.
    tables = {"t": versions((1, None), (11, 10), (21, 20), (38, 30), (41, 33), (51, 50))}
    assert plan_of_rows(tables, 35) == RewindPlan(30, (TableRewind("t", 2, 21),))


def test_a_time_before_the_first_mark_is_refused() -> None:
    with pytest.raises(
        UsageError, match="no version of the table t from before .* the first one that says it is of"
    ):
        plan_of_rows({"t": versions((20, None), (25, None), (30, 28))}, 15)
    # The rows of the first load may be missing in the version that the first mark is about.
    with pytest.raises(UsageError, match="the first load may not have been over"):
        plan_of_rows({"t": HISTORY}, 10)
    with pytest.raises(UsageError, match="the first load may not have been over"):
        plan_of_logs({"t": HISTORY}, 10)


def test_commits_of_other_programs_after_the_version_are_refused_and_before_it_are_not() -> None:
    def with_others(number: int):
        return [replace(each, has_others_rows=each.number == number) for each in HISTORY]

    for plan in (plan_of_rows, plan_of_logs):
        with pytest.raises(
            UsageError, match="version 4 of the table t has changes of rows that are not this job's"
        ):
            plan({"t": with_others(4)}, 35)
        assert plan({"t": with_others(1)}, 35)


def test_a_log_goes_back_to_any_time_and_loses_the_rows_from_then_on() -> None:
    new = versions((32, 33))
    assert plan_of_logs({"t": HISTORY, "new": new}, 27) == RewindPlan(
        27, (TableRewind("new"), TableRewind("t"))
    )
