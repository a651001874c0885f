"""Metrics of several tasks become those of the pipeline."""

from __future__ import annotations

from apache_beam.metrics import monitoring_infos
from apache_beam.metrics.cells import BoundedTrieData

from penstock.runner.metrics import Metrics, deserialized, merged, serialized


def trie(*path: str) -> bytes:
    made = BoundedTrieData()
    made.add(path)
    return monitoring_infos.user_bounded_trie("ns", "files", made).SerializeToString()


def test_bounded_tries_of_several_tasks_are_one() -> None:
    tasks = [trie("a", "1"), trie("b", "2"), trie("a", "1"), trie("a", "3")]
    # Merged twice, as after a restart: the commit record has the sum of the earlier tasks.
    earlier = merged(deserialized(serialized(merged(deserialized(tasks[:2])))))
    infos = merged([*earlier, *deserialized(tasks[2:])])
    (result,) = Metrics(infos).query()["bounded_tries"]
    assert {each[:-1] for each in result.committed.get_result()} == {("a", "1"), ("b", "2"), ("a", "3")}
