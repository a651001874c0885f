"""The oracle itself: it accepts a correct output and finds each kind of fault."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock_emulators.oracle.change import Change, changes_of, nanoseconds
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.oracle.replay import differences, plain, replay
from penstock_emulators.oracle.rules import Counts, broken_rules, count_faults, counted
from tests.support.oracle.watch import Consumer
from tests.support.oracle.watermarks import Report, StagedFile, broken_watermarks

ROOT = Path(__file__).parents[3]
FOLDERS = [
    ROOT / "emulators" / "src" / "penstock_emulators" / "oracle",
    ROOT / "tests" / "support" / "oracle",
]


def change(number: int, mod_type: str = "UPDATE", **fields: object) -> Change:
    """A whole transaction of one change of one key; `number` is its second."""
    default = Change(
        bucket=("T", "1970-01-01T00", "00-of-02"),
        place=f"file:{number}",
        table="T",
        mod_type=mod_type,
        key='{"Id": "1"}',
        new={} if mod_type == "DELETE" else {"V": f"v{number}"},
        old={} if mod_type == "INSERT" else {"V": f"v{number - 1}"},
        transaction=f"t{number}",
        version=(number * 1_000_000_000, "00000000", 0),
        mods_in_record=1,
        records_in_transaction=1,
        partitions_in_transaction=1,
        last_in_partition=True,
    )
    return replace(default, **fields)  # type: ignore[arg-type]


HISTORY = [change(1, "INSERT"), change(2), change(3)]
TYPES = {"T": {"Id": "INT64", "V": "STRING"}}


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_the_oracle_imports_nothing_from_penstock(folder):
    modules = list(folder.glob("*.py"))
    assert len(modules) > 3
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in getattr(node, "names", [])] + [
                getattr(node, "module", None) or ""
            ]
            foreign = [name for name in names if name.startswith(("penstock", "apache_beam", "pyspark"))]
            assert [name for name in foreign if not name.startswith("penstock_emulators.oracle")] == [], path


@pytest.mark.parametrize(
    ("history", "counts"),
    [
        (HISTORY, Counts(0, 0, 0)),
        (HISTORY[:2], Counts(lost=1, doubled=0, out_of_order=0)),
        ([*HISTORY, HISTORY[1]], Counts(lost=0, doubled=1, out_of_order=0)),
        ([HISTORY[0], HISTORY[0], HISTORY[2]], Counts(lost=1, doubled=1, out_of_order=0)),
        ([HISTORY[0], HISTORY[2], HISTORY[1]], Counts(lost=0, doubled=0, out_of_order=1)),
        ([], Counts(lost=3, doubled=0, out_of_order=0)),
    ],
)
def test_lost_doubled_and_disordered_changes_are_counted_apart(history, counts):
    assert count_faults(history, {change.identity for change in HISTORY}) == counts


def test_a_correct_history_breaks_no_rule():
    assert broken_rules(HISTORY) == []


@pytest.mark.parametrize(
    ("history", "sentence"),
    [
        ([*HISTORY, change(3)], "is there 2 times"),
        ([HISTORY[1], HISTORY[0], HISTORY[2]], "one key in the wrong order"),
        ([*HISTORY, change(4, bucket=("T", "1970-01-01T00", "01-of-02"))], "one key is in shards"),
        ([*HISTORY, change(4, bucket=("T", "1970-01-01T01", "00-of-02"))], "is a change of T, 1970-01-01T00"),
        ([*HISTORY, change(4, bucket=("U", "1970-01-01T00", "00-of-02"))], "is a change of T"),
        ([*HISTORY, change(4, records_in_transaction=2)], "has 1 of 2 records"),
        ([*HISTORY, change(4, mods_in_record=2)], "has a record with 1 of 2 mods"),
        ([*HISTORY, change(4, partitions_in_transaction=2)], "has 1 last records in 2 partitions"),
        ([*HISTORY, change(4, last_in_partition=False)], "has 0 last records in 1 partitions"),
        ([*HISTORY, change(4), change(5, transaction="t4")], "has several commit timestamps"),
    ],
)
def test_each_broken_rule_is_found(history, sentence):
    assert any(sentence in found for found in broken_rules(history))


def test_a_replay_that_equals_the_table_has_no_differences():
    table = {"T": {'{"Id": "1"}': {"Id": 1, "V": "v3"}}}
    assert differences(replay(HISTORY), table, TYPES) == []


@pytest.mark.parametrize(
    ("history", "rows", "sentence"),
    [
        (HISTORY[:2], {'{"Id": "1"}': {"Id": 1, "V": "v3"}}, "T.V differs in 1 rows"),
        ([], {'{"Id": "1"}': {"Id": 1, "V": "v3"}}, "1 of 1 rows are missing"),
        (HISTORY, {}, "1 rows of the replay are not in the table"),
        (
            [HISTORY[0], HISTORY[2]],
            {'{"Id": "1"}': {"Id": 1, "V": "v3"}},
            "old values that the row did not have",
        ),
        (HISTORY[1:], {'{"Id": "1"}': {"Id": 1, "V": "v3"}}, "is an UPDATE of no row"),
        ([*HISTORY, change(4, "INSERT")], {'{"Id": "1"}': {"Id": 1, "V": "v4"}}, "INSERT of an existing row"),
    ],
)
def test_each_difference_from_the_tables_is_found(history, rows, sentence):
    assert any(sentence in found for found in differences(replay(history), {"T": rows}, TYPES))


def test_a_deleted_row_is_gone_from_the_replay():
    assert differences(replay([*HISTORY, change(4, "DELETE")]), {"T": {}}, TYPES) == []


def test_times_that_differ_by_nanoseconds_are_not_equal():
    assert nanoseconds("1970-01-01T00:00:01.000000001Z") == 1_000_000_001
    assert nanoseconds("1970-01-01T00:00:01Z") == 1_000_000_000
    with pytest.raises(ValueError, match="RFC 3339"):
        nanoseconds("1970-01-01T00:00:01+00:00")


def test_big_integers_and_bytes_are_compared_exactly():
    assert plain("INT64", "9007199254740993") == 9_007_199_254_740_993
    assert plain("ARRAY<BYTES>", ["AAE=", None]) == [b"\x00\x01", None]
    assert plain("NUMERIC", "1.50") == plain("NUMERIC", "1.5")


def test_a_generated_source_is_compared_by_count_and_order(tmp_path):
    write(tmp_path / "t/h/00-of-01_1.jsonl", [{"k": "a", "n": 0}, {"k": "a", "n": 2}, {"k": "a", "n": 1}])
    write(tmp_path / "t/h/00-of-01_2.jsonl", [{"k": "a", "n": 1}])
    found = counted(read_lines(tmp_path), "k", "n", {"a": 4})
    assert found == ["key 'a': 1 lost, 1 doubled, 0 never generated, 1 out of order"]
    assert counted(read_lines(tmp_path), "k", "n", {}) == ["key 'a' was never generated"]


def test_files_are_read_by_name_and_hidden_ones_are_not(tmp_path):
    write(tmp_path / "t/h/00-of-01_2.jsonl", [{"n": 2}])
    write(tmp_path / "t/h/00-of-01_1.jsonl", [{"n": 1}])
    write(tmp_path / ".penstock-staging/j/s", [{"n": 3}])
    write(tmp_path / "taken/t/h/00-of-01_0.jsonl", [{"n": 0}])
    lines = list(read_lines(tmp_path, tmp_path / "taken"))
    assert [line.content["n"] for line in lines if line.table == "t"] == [0, 1, 2]


def test_a_torn_line_is_found(tmp_path):
    path = write(tmp_path / "t/h/00-of-01_1.jsonl", [{"n": 1}])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="middle of a line"):
        list(read_lines(tmp_path))


def test_a_line_with_a_missing_field_is_refused(tmp_path):
    write(tmp_path / "t/h/00-of-01_1.jsonl", [{"n": 1}])
    with pytest.raises(KeyError, match=r"table_name|keys"):
        list(changes_of(read_lines(tmp_path)))


def test_a_consumer_notes_files_that_change_disappear_or_appear_again(tmp_path):
    output, one, other = tmp_path / "out", "t/h/00-of-01_1.jsonl", "t/h/00-of-01_2.jsonl"
    consumer = Consumer(output, tmp_path / "taken")
    write(output / one, [{"n": 1}])
    write(output / other, [{"n": 2}])
    consumer.look()
    assert consumer.wrong == []
    write(output / one, [{"n": 9}])
    (output / other).unlink()
    consumer.look()
    assert [sentence.split(" ", 1)[1] for sentence in sorted(consumer.wrong)] == [
        "changed after it was published",
        "disappeared",
    ]


def test_a_consumer_notes_a_file_that_appears_again_after_it_was_taken(tmp_path):
    output, name = tmp_path / "out", "t/h/00-of-01_1.jsonl"
    with Consumer(output, tmp_path / "taken", take=1.0) as consumer:
        write(output / name, [{"n": 1}])
        consumer.look()
    assert (tmp_path / "taken" / name).exists()
    assert consumer.wrong == []
    write(output / name, [{"n": 1}])
    consumer.look()
    assert consumer.wrong == [f"{name} appeared again after it was taken away"]


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_watermark_that_passes_an_unread_change_or_goes_back_is_found() -> None:
    second = 1_000_000_000
    reports = [Report(10 * second, 8 * second), Report(15 * second, 13 * second)]
    honest = [StagedFile("early", 9 * second, 7 * second), StagedFile("late", 12 * second, 8 * second)]
    assert broken_watermarks(reports, honest) == []
    passed = StagedFile("passed", 11 * second, 8 * second - 1)
    assert [text.partition(" ")[0] for text in broken_watermarks(reports, [*honest, passed])] == ["passed"]
    assert "went back by 5.000 s" in broken_watermarks(reports[::-1], [])[0]
