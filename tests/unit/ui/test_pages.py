"""The HTML of the pages, and how the server answers."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from penstock.io.change_streams.frontier import Scan, Slowest, TableMove
from penstock.telemetry.lineage import PartitionSpan
from penstock.telemetry.state import Condition, JobState
from penstock.telemetry.status import PipelineStatus
from penstock.ui import render
from penstock.ui.server import application, is_loopback
from penstock.ui.view import Answer, JobView, LetterGroup, Sink

HOSTILE = "<script>alert(1)</script>\"'&"
AT = 1_000_000.0


def hostile_job() -> JobView:
    """A job whose every text from outside is hostile."""
    sample = PipelineStatus(
        AT,
        3,
        AT,
        AT - 100,
        1,
        1,
        {"splits": 1},
        slowest=Slowest(HOSTILE, 0, (HOSTILE,)),
        scans=(Scan(HOSTILE, 1, 2),),
        table_moves=(TableMove(HOSTILE, True, 0), TableMove(HOSTILE, False, 10**18)),
        newest_changes={HOSTILE: AT - 1},
    )
    return JobView(
        AT,
        "abc",
        HOSTILE,
        JobState(Condition.RUNNING, HOSTILE),
        name=HOSTILE,
        job=HOSTILE,
        job_file=HOSTILE,
        reads=(HOSTILE,),
        driver=HOSTILE,
        record=3,
        generation=1,
        samples=(replace(sample, at=AT - 1), sample),
        sinks=(Sink(HOSTILE, AT, 1, {HOSTILE: 1}),),
        partitions=(
            PartitionSpan("p", AT - 50),
            PartitionSpan(HOSTILE, AT - 10, sources=[(AT - 10, "p")], waits_for={"p"}),
        ),
        letters=(LetterGroup(HOSTILE, 1, HOSTILE, 5, 2),),
        oldest_letter=AT - 7200,
        answers=(Answer(AT, "penstock_slot_retained_bytes", HOSTILE, HOSTILE, 1e9, "By"),),
        configuration={"parameters": {HOSTILE: HOSTILE}},
        notes={"positions": HOSTILE, "letters": HOSTILE, "configuration": HOSTILE},
    )


class Elements(HTMLParser):
    """Collects the elements of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(params=["jobs", "job", "file", "missing"])
def page(request: pytest.FixtureRequest) -> str:
    job = hostile_job()
    return {
        "jobs": lambda: render.jobs_page([job], AT, 5),
        "job": lambda: render.job_page(job, 5),
        "file": lambda: render.job_file(job),
        "missing": lambda: render.missing_page(HOSTILE),
    }[request.param]()


def test_a_text_from_outside_stays_text(page: str) -> None:
    assert "alert(1)" in page
    scripts = Elements(page).of("script")
    assert all(script.get("src") == "/static/refresh.js" for script in scripts)
    assert "<script>" not in page


def test_nothing_on_a_page_needs_another_origin_or_an_inline_permission(page: str) -> None:
    for _, attributes in Elements(page).found:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("src", "href", "action"):
            assert (attributes.get(name) or "").partition(":")[0] not in (
                "http",
                "https",
                "javascript",
                "data",
            )


def test_every_table_has_a_caption_and_headers_and_each_page_one_main_heading(page: str) -> None:
    elements = Elements(page)
    assert len(elements.of("caption")) == len(elements.of("table"))
    assert all(header.get("scope") in ("row", "col") for header in elements.of("th"))
    assert (len(elements.of("h1")), len(elements.of("main"))) == (1, 1)
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    labels = [
        attributes["aria-labelledby"] for _, attributes in elements.found if "aria-labelledby" in attributes
    ]
    assert set(labels) <= set(ids)


def test_the_file_has_no_script_and_its_policy_names_its_style() -> None:
    page = render.job_file(hostile_job())
    assert not Elements(page).of("script")
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    (meta,) = [
        each for each in Elements(page).of("meta") if each.get("http-equiv") == "Content-Security-Policy"
    ]
    assert meta["content"] == policy
    assert [each for each in Elements(page).of("a") if (each.get("href") or "").startswith("/")] == []


def test_a_page_refreshes_without_a_script_too_unless_it_is_told_not_to() -> None:
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in render.job_page(hostile_job(), 5)
    assert "http-equiv" not in render.job_page(hostile_job(), 0)


class OneJob:
    """A job that the server shows."""

    def all(self) -> list[JobView]:
        return [hostile_job()]

    def one(self, key: str) -> JobView | None:
        return hostile_job() if key == "abc" else None


def ask(path: str, host: str = "localhost", **more: Any) -> Any:
    app = application(OneJob(), 5, ["localhost", "127.0.0.1"])
    return app.test_client().open(path, base_url=f"http://{host}:8642", **more)


@pytest.mark.parametrize("path", ["/", "/jobs/abc", "/jobs/abc.html", "/jobs/other", "/static/style.css"])
def test_every_answer_has_the_strict_policy(path: str) -> None:
    answer = ask(path)
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_link_to_nothing_is_404_and_nothing_can_be_posted() -> None:
    assert ask("/jobs/other").status_code == 404
    assert ask("/jobs/other.html").status_code == 404
    assert ask("/jobs/../../etc/passwd").status_code == 404
    assert [ask("/jobs/abc", method=method).status_code for method in ("POST", "PUT", "DELETE")] == [405] * 3


def test_a_page_of_another_origin_cannot_reach_the_server_by_a_name_of_its_own() -> None:
    assert ask("/").status_code == 200
    assert ask("/", "127.0.0.1").status_code == 200
    assert ask("/", "rebound.example.com").status_code == 400


def test_the_refresh_can_be_stopped_and_links_keep_it_stopped() -> None:
    assert 'data-refresh="5"' in ask("/").text
    stopped = ask("/?refresh=off").text
    assert 'data-refresh="0"' in stopped
    assert 'href="/jobs/abc?refresh=off"' in stopped


def test_the_exported_file_is_a_download() -> None:
    answer = ask("/jobs/abc.html")
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert answer.text == render.job_file(hostile_job())


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("db", False)],
)
def test_only_loopback_is_private(host: str, local: bool) -> None:
    assert is_loopback(host) is local
