"""`penstock run` on a real emulator and a real Spark: it publishes, stops with a checkpoint, and continues."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.compat import UTC

pytestmark = [pytest.mark.spark, pytest.mark.emulator, pytest.mark.slow(seconds=45)]

Published = Callable[[Path], list[dict[str, Any]]]


def settings(tmp_path: Path, **changed: str) -> list[str]:
    """The flags of `penstock run spanner-to-files` for the shop."""
    parameters = {
        "project": "my-project",
        "instance": "main",
        "database": "shop",
        "change_stream": "OrdersStream",
        "output": str(tmp_path / "out"),
        "roll_seconds": "0",
    } | changed
    sets = [word for name, value in parameters.items() for word in ("--set", f"{name}={value}")]
    return [*sets, "--checkpoint-dir", str(tmp_path / "checkpoint"), "--master", "local[2,4]"]


def orders_in(lines: list[dict[str, Any]]) -> list[int]:
    return sorted(int(line["keys"]["OrderId"]) for line in lines)


@pytest.mark.long(seconds=36)
def test_stopped_and_killed_runs_continue_without_loss_or_repeat(
    start: Any, shop: Any, published: Published, penstock: list[str], tmp_path: Path
) -> None:
    command = [*penstock, "run", "spanner-to-files", *settings(tmp_path)]
    out = tmp_path / "out"

    first = start(*command, "--fresh")
    first.until(lambda: bool(first.events("progress")) and first.events("progress")[-1]["epochs"] > 1)
    shop.order(range(50))
    first.until(lambda: len(published(out)) >= 50)
    assert first.interrupt(signal.SIGINT) == 130
    assert all(json.loads(line) for line in first.output.splitlines()), "standard error is all JSON"
    (resume,) = first.events("resume")
    assert resume["command"].startswith("penstock run spanner-to-files")
    assert "--fresh" not in resume["command"]

    again = start(*command, "--fresh")
    assert again.process.wait(180) == 3, again.output
    assert str(tmp_path / "checkpoint") in again.events("error")[0]["message"]

    shop.order(range(50, 100))
    second = start(*command)
    second.until(lambda: len(published(out)) >= 100)
    shop.order(range(100, 150))
    second.kill()

    third = start(*command)
    third.until(lambda: len(published(out)) >= 150)
    shop.cancel(range(150))
    third.until(lambda: len(published(out)) >= 300)
    assert third.interrupt(signal.SIGTERM, signal.SIGTERM) == 130
    assert third.events("stopped"), "two signals at one moment, as GNU timeout sends them, are one request"

    lines = published(out)
    assert orders_in([line for line in lines if line["mod_type"] == "INSERT"]) == list(range(150))
    assert orders_in([line for line in lines if line["mod_type"] == "DELETE"]) == list(range(150))
    identities = {
        (line["server_transaction_id"], line["record_sequence"], line["mod_index"]) for line in lines
    }
    assert len(identities) == len(lines) == 300


@pytest.mark.long(seconds=10)
def test_losing_the_reader_of_messages_does_not_stop_the_work(
    start: Any, shop: Any, published: Published, penstock: list[str], tmp_path: Path
) -> None:
    """As in `penstock run … 2>&1 | head -1`, with a terminal that is closed, which sends SIGHUP."""
    program = start(*penstock, "run", "spanner-to-files", *settings(tmp_path), piped=True)
    assert json.loads(program.process.stderr.readline())["event"] in ("log", "progress")
    program.process.stderr.close()
    program.until(lambda: _orders_until_published(shop, published, tmp_path / "out"))
    before = len(published(tmp_path / "out"))
    shop.order(range(2_000_000, 2_000_050))
    program.until(lambda: len(published(tmp_path / "out")) >= before + 50)
    assert program.interrupt(signal.SIGHUP) == 130
    orders = orders_in(published(tmp_path / "out"))
    assert len(set(orders)) == len(orders)


@pytest.mark.campaign
def test_the_same_command_continues_after_a_kill_and_after_its_end(
    start: Any, shop: Any, published: Published, penstock: list[str], tmp_path: Path
) -> None:
    """Without a start, the command reads from now. Later that is after its end, and must not be refused."""
    # Long enough for a start on a busy machine: the orders come between the start and the end.
    end = datetime.now(UTC) + timedelta(seconds=30)
    command = [*penstock, "run", "spanner-to-files", *settings(tmp_path, end=f"{end:%Y-%m-%dT%H:%M:%SZ}")]
    killed = start(*command)
    killed.until(lambda: _orders_until_published(shop, published, tmp_path / "out"))
    killed.kill()
    again = start(*command)
    assert again.process.wait(180) == 0, again.output
    lines = published(tmp_path / "out")
    after_the_end = start(*command)
    assert after_the_end.process.wait(180) == 0, after_the_end.output
    assert after_the_end.events("done")
    assert published(tmp_path / "out") == lines
    assert len(set(orders_in(lines))) == len(lines)


@pytest.mark.campaign
def test_a_pipeline_reads_on_after_its_end_when_the_end_is_moved_or_removed(
    start: Any, shop: Any, published: Published, penstock: list[str], tmp_path: Path
) -> None:
    """The end is moved after a kill, and removed after DONE; no order is lost or doubled at either end."""
    out, run = tmp_path / "out", [*penstock, "run", "spanner-to-files"]
    first_end = datetime.now(UTC) + timedelta(seconds=20)
    killed = start(*run, *settings(tmp_path, end=f"{first_end:%Y-%m-%dT%H:%M:%SZ}"))
    killed.until(lambda: _orders_until_published(shop, published, out))
    killed.kill()
    first = next(_next_order)
    second_end = max(datetime.now(UTC), first_end) + timedelta(seconds=10)
    moved = start(*run, *settings(tmp_path, end=f"{second_end:%Y-%m-%dT%H:%M:%SZ}"))
    last = first
    while datetime.now(UTC) < second_end + timedelta(seconds=2):
        shop.order(range(last, last + 1))
        last = next(_next_order)
    assert moved.process.wait(180) == 0, moved.output
    at_the_end = set(orders_in(published(out)))
    assert set(range(first, last)) - at_the_end, "orders after the second end must wait"

    earlier = start(*run, *settings(tmp_path, end=f"{first_end:%Y-%m-%dT%H:%M:%SZ}"))
    assert earlier.process.wait(180) == 3, earlier.output
    assert "was made for a later end" in earlier.events("error")[0]["message"]

    endless = start(*run, *settings(tmp_path))
    endless.until(lambda: set(range(first, last)) <= set(orders_in(published(out))))
    endless.kill()
    lines = published(out)
    assert len(set(orders_in(lines))) == len(lines)


@pytest.mark.campaign
def test_an_end_in_the_past_is_refused_at_the_first_start(
    start: Any, shop: Any, penstock: list[str], tmp_path: Path
) -> None:
    program = start(*penstock, "run", "spanner-to-files", *settings(tmp_path, end="2026-01-01T00:00:00Z"))
    assert program.process.wait(180) == 3
    assert "pass an earlier start or a later end" in program.events("error")[0]["message"]


@pytest.mark.campaign
def test_a_stream_that_does_not_exist_is_refused_before_anything_is_read(
    start: Any, shop: Any, penstock: list[str], tmp_path: Path
) -> None:
    program = start(*penstock, "run", "spanner-to-files", *settings(tmp_path, change_stream="Nothing"))
    assert program.process.wait(180) == 3
    (error,) = program.events("error")
    assert "Nothing" in error["message"]


@pytest.mark.long(seconds=5)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(
    start: Any, shop: Any, penstock: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    program = start(*penstock, "run", "spanner-to-files", *settings(tmp_path, output=str(tmp_path / "file")))
    assert program.process.wait(180) == 3
    assert str(tmp_path / "file") in program.events("error")[0]["message"]
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.campaign
def test_the_pipeline_starts_under_spark_submit(
    start: Any, shop: Any, published: Published, tmp_path: Path
) -> None:
    import pyspark

    from penstock.pipelines import spanner_to_files

    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2,4]"]
    arguments = [word for word in settings(tmp_path) if word.partition("=")[1]]
    program = start(
        *submit,
        "--conf",
        f"spark.pyspark.python={sys.executable}",
        str(spanner_to_files.__file__),
        *(f"--{pair}" for pair in arguments),
        f"--checkpoint_dir={tmp_path / 'checkpoint'}",
    )
    program.until(lambda: (tmp_path / "checkpoint").exists())
    program.until(lambda: _orders_until_published(shop, published, tmp_path / "out"))
    lines = published(tmp_path / "out")
    assert {line["table_name"] for line in lines} == {"Orders"}


_next_order = iter(range(1000, 1_000_000))


def _orders_until_published(shop: Any, published: Published, out: Path) -> bool:
    """Place one more order and return whether any is published: the pipeline reads from the time it started."""
    number = next(_next_order)
    shop.order(range(number, number + 1))
    return bool(published(out))
