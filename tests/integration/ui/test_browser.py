"""`penstock ui` in a real browser: thirty jobs, of which three failed and one is stuck behind a partition.

PENSTOCK_SCREENSHOTS=docs/ui makes the pictures of the documentation: PNG files in that folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.measurement import Measurement
from penstock.runner import RemoteJob
from penstock.runner.protocol import Coordinator
from penstock.runner.protocol.record import WatermarkKey
from penstock.runner.store import Checkpoint
from penstock.runner.store.drivers import Answers, DriverNotes, Ended
from penstock.timestamps import format_timestamp
from tests.support.played_jobs import (
    PUBLISH,
    counter,
    dead_letters,
    job_file,
    lineage_log,
    play,
    state,
    table_time,
    waiting_residual,
)
from tests.support.waiting import wait_until
from tools import browser as browsers

pytestmark = [pytest.mark.browser, pytest.mark.slow(seconds=60)]

HOSTILE = "<script>alert('table')</script>"
STUCK, PARENT = "9GQz1childTokenOfAMerge7fK2", "4hTn8parentTokenThatIsRefused3xB"
LOW = "3cTy7leftHalfOfLow1pVs"
BEHIND_SECONDS = 2700
NAMES = (
    "orders",
    "users",
    "payments",
    "invoices",
    "shipments",
    "carts",
    "events",
    "stock",
    "prices",
    "visits",
)
FAILED = {
    "payments-eu": "PostgreSQL at db.example.org/shop refuses the rows of payments: no primary key (epoch 25 failed)",
    "stock-us": "the object store of s3://lake/stock gave no answer for 60 s",
    "visits-asia": "the retention of change stream VisitsStream has passed (PositionLostError)",
}


def thirty_jobs(folder: Path) -> None:
    """Make checkpoints and job files of thirty jobs in a folder."""
    names = [f"{name}-{region}" for name in NAMES for region in ("eu", "us", "asia")]
    now = time.time()
    for index, name in enumerate(names):
        checkpoint = folder / name
        if name in FAILED:
            play(checkpoint, ended=Ended("FAILED", FAILED[name]), age=3000 + 60 * index)
        elif name != "orders-eu":
            play(checkpoint, lag=0.4 + index / 20, pace=40 * index + 20)
    parameters = {
        "lineage_log": str(folder / "lineage"),
        "dead_letters": str(folder / "dead"),
        "mask_columns": {"Users.Email": "hash"},
        "mask_key": "${env:MASK_KEY}",
    }
    stuck = job_file(folder / "orders-eu.yaml", folder / "orders-eu", **parameters)  # type: ignore[arg-type]
    start = now - BEHIND_SECONDS
    residual = waiting_residual(stuck, start, STUCK, [PARENT], read=[LOW, PARENT])
    watermarks = {
        WatermarkKey.output(residual.transform): int(start * 1e6),
        WatermarkKey.carried(PUBLISH): int(start * 1e6),
    }
    metrics = (
        table_time(HOSTILE, now - 3),
        *state(start, 1008, splits=14, merges=9, moves=3).metrics[:-1],
        counter("staging", "published_files", 41, PUBLISH),
        counter("staging", "staged_records", 1008, PUBLISH),
    )
    last = {"residuals": (residual,), "watermarks": watermarks, "metrics": metrics}
    orders = play(folder / "orders-eu", lag=BEHIND_SECONDS, pace=1, last=last)
    answer(orders, now - 12)
    lineage_log(folder / "lineage", _lineage(now))
    dead_letters(folder / "dead", HOSTILE, f"the value of {HOSTILE}.Note is too long for the column", 12)
    dead_letters(folder / "dead", "Orders", "the column Amount has no default", 3, file="2.jsonl")


def answer(checkpoint: Checkpoint, at: float) -> None:
    """Leave what the services answered to the driver, as a driver with metrics does."""
    values = (
        Measurement(
            "penstock_retention_seconds",
            604_800,
            "How long the service keeps changes.",
            "s",
            labels=(("stream", "OrdersStream"),),
        ),
        Measurement("penstock_dead_letter_files", 2, "Files with dead letters that no replay has taken."),
    )
    last = RemoteJob.open(str(checkpoint.folder)).last()
    assert last is not None
    DriverNotes(checkpoint).note_answers(last.generation, Answers(at, tuple(asdict(each) for each in values)))


def _lineage(now: float) -> list[dict[str, Any]]:
    """Return two partitions that split into four, of which two merge; the merged one waits for one of them."""

    def event(
        ago: float, kind: str, partition: str, parents: tuple[str, ...] = (), by: str = ""
    ) -> dict[str, Any]:
        time_ = format_timestamp(int((now - ago) * 1e9))
        return {"time": time_, "event": kind, "partition": partition, "parents": parents, "announced_by": by}

    first, second = "1aRw5rootOfTheLowKeys8mNp", "2bSx6rootOfTheHighKeys9nQr"
    middle = "5dUz8rightHalfOfLow2qWt"
    return [
        event(7200, "announced", first),
        event(7200, "announced", second),
        event(5400, "announced", LOW, (first,), first),
        event(5400, "announced", middle, (first,), first),
        event(5400, "closed", first),
        event(4100, "announced", PARENT, (second,), second),
        event(4100, "closed", second),
        event(BEHIND_SECONDS, "announced", STUCK, (middle, PARENT), middle),
        event(BEHIND_SECONDS, "closed", middle),
    ]


@dataclass
class Seen:
    """What a page did that it must not do."""

    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def watch(self, page: Any) -> Any:
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        return page


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # Not a folder of pytest: the paths are in the pictures.
    with tempfile.TemporaryDirectory(prefix="jobs-") as folder:
        thirty_jobs(Path(folder))
        yield Path(folder)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The address of `penstock ui` over the folder, in a process of its own."""
    command = [sys.executable, "-m", "penstock.cli.main", "ui", str(folder), "--port", "0", "--refresh", "1"]
    # A variable of some CI makes Python keep its output in a buffer.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("http://127.0.0.1:"), line
            yield line.strip()
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root Chromium needs it; the pages are ours.
        found = playwright.chromium.launch(executable_path=browsers.find(), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def seen(address: str) -> Iterator[Seen]:
    """What a page did; after the test: no request left the origin, no script of a name ran, no policy was broken."""
    found = Seen()
    yield found
    assert [url for url in found.requests if not url.startswith(address)] == []
    assert (found.dialogs, found.console) == ([], [])


@pytest.fixture
def page(chromium: Any, seen: Seen) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1000, "height": 660})
    context.set_default_timeout(120_000)
    yield seen.watch(context.new_page())
    context.close()


def test_a_newcomer_finds_the_stuck_partition_and_its_reason_within_three_clicks(
    page: Any, address: str, folder: Path
) -> None:
    page.goto(address)
    rows = page.get_by_role("table").get_by_role("row")
    assert rows.count() == 31
    assert page.get_by_label("Jobs by state").get_by_role("listitem").first.inner_text() == "3 failed"
    assert "3 failed" in page.title()
    # Those that need a person come first, with the reason in the row.
    for number in (1, 2, 3):
        assert "failed" in rows.nth(number).inner_text()
    stuck = rows.filter(has_text="which waits for")
    assert stuck.count() == 1
    assert re.search(r"the watermark is \d+ min behind", stuck.inner_text())
    _picture(page, "jobs.png")
    stuck.get_by_role("link").click()  # one
    warnings = page.get_by_role("region", name="Warnings")
    assert (
        "held by partition 9GQz1chi…erge7fK2, which waits for partition 4hTn8par…fused3xB"
        in warnings.inner_text()
    )
    page.get_by_role("link", name="Partitions", exact=True).click()  # two
    row = page.get_by_role("row").filter(has_text=STUCK)
    assert f"waits for {PARENT}" in row.first.inner_text()
    row.first.scroll_into_view_if_needed()
    _picture(page, "partitions.png")


def test_the_name_of_a_table_stays_text(page: Any, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name="orders-eu").click()
    letters = page.get_by_role("table").filter(has_text="could not be processed")
    assert HOSTILE in letters.get_by_role("rowheader").first.inner_text()
    tables = page.get_by_role("table").filter(has_text="Tables with changes")
    assert re.search(re.escape(HOSTILE) + r"\s.*\d\.\d s", tables.inner_text())
    assert "The oldest letter that no replay has taken is of 2026-01-31" in page.inner_text("main")
    assert "penstock dead-letters replay" in page.inner_text("main")
    assert "${env:MASK_KEY}" in page.inner_text("main")


def test_a_page_of_a_job_has_the_lag_of_tables_and_what_services_said(page: Any, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name="orders-eu").click()
    page.get_by_role("link", name="Tables", exact=True).click()
    tables = page.get_by_role("table").filter(has_text="Tables with changes")
    lag = tables.get_by_role("row").filter(has_text=HOSTILE).get_by_role("cell").last.inner_text()
    assert re.fullmatch(r"\d\.\d s", lag)
    services = page.get_by_role("table").filter(has_text="What the services answered to the driver")
    assert services.get_by_role("row").filter(has_text="keeps changes").inner_text().endswith("168.0 h")
    assert "OrdersStream" in services.inner_text()
    _picture(page, "tables.png")


def test_a_page_shows_new_commits_and_the_focus_stays(page: Any, address: str, folder: Path) -> None:
    page.goto(address)
    link = page.get_by_role("link", name="users-us", exact=True)
    link.focus()
    kept = link.get_attribute("id")
    coordinator = Coordinator(Checkpoint.existing(str(folder / "users-us")))
    coordinator.take_over()
    coordinator.commit(coordinator.begin(), state(time.time() - 5400, 1))
    page.get_by_role("row").filter(has_text="the watermark is 90 min behind").wait_for()
    assert page.evaluate("document.activeElement.id") == kept
    page.goto(f"{address}?refresh=off")
    before = page.inner_text("main")
    page.wait_for_timeout(2500)
    assert page.inner_text("main") == before


def test_the_keyboard_reaches_everything(page: Any, address: str) -> None:
    page.goto(f"{address}?refresh=off")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "MAIN"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Table of jobs"
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/*")
    assert page.get_by_role("heading", level=1).inner_text().endswith("failed")


@pytest.mark.long_cases("dark", seconds=5)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_rule_of_accessibility_is_broken(chromium: Any, seen: Seen, address: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # The checker is a script, which the policy of the page does not admit.
    context = chromium.new_context(color_scheme=scheme, bypass_csp=True)
    page = seen.watch(context.new_page())
    for path in ("?refresh=off", None):
        if path is None:
            page.get_by_role("link", name="orders-eu").click()
            page.wait_for_load_state()
        else:
            page.goto(address + path)
        broken = Axe().run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in broken] == []
    context.close()


def test_without_scripts_the_facts_are_there_and_the_page_reloads_itself(
    chromium: Any, seen: Seen, address: str
) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = seen.watch(context.new_page())
    page.goto(address)
    assert page.get_by_role("row").count() == 31
    loads = seen.requests.count(address)
    wait_until(lambda: (page.wait_for_timeout(200), seen.requests.count(address) > loads)[1], "a reload")
    context.close()


def test_the_exported_file_works_without_the_server(
    chromium: Any, page: Any, address: str, tmp_path: Path
) -> None:
    page.goto(address)
    page.get_by_role("link", name="orders-eu").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Save as one file").click()
    file = tmp_path / "job.html"
    download.value.save_as(file)
    context, seen = chromium.new_context(offline=True), Seen()
    exported = seen.watch(context.new_page())
    exported.goto(file.as_uri())
    assert HOSTILE in exported.inner_text("main")
    assert exported.evaluate("getComputedStyle(document.body).marginTop") == "0px"  # its style is admitted
    assert exported.locator("svg").count() == 3
    assert [re.sub(r"^file:.*", "", url) for url in seen.requests] == [""]
    assert (seen.dialogs, seen.console) == ([], [])
    context.close()


def _picture(page: Any, name: str) -> None:
    """Make a picture for the documentation, if the run is asked for it."""
    if into := os.environ.get("PENSTOCK_SCREENSHOTS"):
        from PIL import Image

        Path(into).mkdir(parents=True, exist_ok=True)
        file = Path(into, name)
        page.screenshot(path=str(file))
        # A quarter of the size, and no difference that a reader would see.
        Image.open(file).quantize(64).save(file, optimize=True)
