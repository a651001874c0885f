"""Makes the HTML of the pages with Jinja2: of the server's, and of the one file that `penstock status --html` writes.

Everything is escaped: names of tables and partitions are users' and services' texts. No page has a script or a style
in it that its content security policy does not name.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from functools import lru_cache
from importlib.resources import files
from typing import Any

from penstock import __version__
from penstock.extras import extra_packages
from penstock.telemetry.status import span
from penstock.ui import drawings
from penstock.ui.view import JobView, by_urgency, counted, counted_noun


def jobs_page(jobs: list[JobView], at: float, refresh_seconds: float) -> str:
    """Return the page with all jobs. It refreshes after `refresh_seconds`; 0: never."""
    ordered = by_urgency(jobs)
    return _render("jobs.html", jobs=ordered, counts=counted(ordered), at=at, refresh=refresh_seconds)


def job_page(job: JobView, refresh_seconds: float) -> str:
    """Return the server's page of a job."""
    return _render("job.html", **_of(job), refresh=refresh_seconds)


def job_file(job: JobView) -> str:
    """Return the page of a job as one file, which needs no network and no script."""
    style = (files(__package__) / "static" / "style.css").read_text("utf-8")
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _render("job.html", **_of(job), refresh=0, style=style, style_digest=digest)


def missing_page(text: str) -> str:
    """Return the page of a link to nothing."""
    return _render("missing.html", text=text, refresh=0)


def _of(job: JobView) -> dict[str, Any]:
    ran = job.while_it_ran
    lags = [(each.at, each.lag) for each in ran if each.lag is not None]
    return {
        "job": job,
        "at": job.at,
        "charts": [
            ("Watermark lag, seconds", drawings.chart(lags)),
            ("Changes per second", drawings.chart(drawings.rates(ran))),
        ],
        "lineage": drawings.lineage(job.partitions, job.seen_until),
    }


def _render(page: str, **values: Any) -> str:
    return str(_environment().get_template(page).render(values))


@lru_cache(maxsize=1)
def _environment() -> Any:
    with extra_packages("cli"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    environment = Environment(
        loader=PackageLoader(__package__, "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "of": counted_noun,
        "span": span,
        "time": drawings.time_text,
        "shortened": drawings.shortened,
        "described": drawings.described,
        "kind": drawings.kind_of,
    }
    environment.globals |= {
        "version": __version__,
        "width": drawings.WIDTH,
        "chart_height": drawings.CHART_HEIGHT,
        "margin": drawings.MARGIN,
        "row": drawings.ROW,
        "labels": drawings.LABELS,
        "style": None,
        "style_digest": None,
    }
    return environment
