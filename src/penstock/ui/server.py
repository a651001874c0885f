"""Serves the pages with Flask and waitress. It only reads, and keeps nothing that it could lose.

serve(jobs, "127.0.0.1", 8642, refresh_seconds=5, say=print)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Protocol

from penstock.errors import UsageError
from penstock.extras import extra_packages
from penstock.ui import render
from penstock.ui.view import JobView

HEADERS = {
    # No inline script or style, no other origin, no form, no frame: a name of a table cannot become more than text.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Jobs(Protocol):
    """The jobs that the pages show. For any number of threads."""

    def all(self) -> list[JobView]:
        """Return all jobs, briefly."""

    def one(self, key: str) -> JobView | None:
        """Return a job with everything; None if there is none with this key."""


def application(jobs: Jobs, refresh_seconds: float, hosts: list[str] | None = None) -> Any:
    """Return the WSGI application. `hosts` are the names by which it answers; None: any.

    Raises:
        MissingExtraError: Flask is missing.
    """
    with extra_packages("ui"):
        from flask import Flask, Response, request

    app = Flask(__package__, static_folder="static")
    # Otherwise a page of another origin whose name resolves to this machine (DNS rebinding) could read the pages.
    app.config["TRUSTED_HOSTS"] = hosts

    def refresh() -> float:
        return 0 if request.args.get("refresh") == "off" else refresh_seconds

    @app.get("/")
    def all_jobs() -> str:
        return render.jobs_page(jobs.all(), time.time(), refresh())

    @app.get("/jobs/<key>")
    def one_job(key: str) -> Any:
        job = jobs.one(key)
        return missing() if job is None else render.job_page(job, refresh())

    @app.get("/jobs/<key>.html")
    def file_of_job(key: str) -> Any:
        job = jobs.one(key)
        if job is None:
            return missing()
        # Its own policy is in the file, and names the digest of its style.
        return Response(
            render.job_file(job), headers={"Content-Disposition": 'attachment; filename="penstock-job.html"'}
        )

    @app.errorhandler(404)
    def missing(_: object = None) -> tuple[str, int]:
        return render.missing_page("There is no such page, or the job is no longer in the folders."), 404

    @app.after_request
    def protect(response: Response) -> Response:
        response.headers.update(HEADERS)
        return response

    return app


def serve(jobs: Jobs, host: str, port: int, *, refresh_seconds: float, say: Callable[[str], None]) -> None:
    """Serve the pages until Ctrl-C. `port` 0 takes a free one. `say` gets the address.

    Raises:
        UsageError: the address is in use, or not of this machine.
        MissingExtraError: Flask or waitress is missing.
    """
    with extra_packages("ui"):
        from waitress import create_server
    hosts = ["localhost", host] if is_loopback(host) else None
    app = application(jobs, refresh_seconds, hosts)
    try:
        # No name of the server's program in answers.
        server = create_server(app, host=host, port=port, threads=4, ident="")
    except OSError as error:
        raise UsageError(
            f"no page on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from None
    address = f"[{host}]" if ":" in host else host
    say(f"http://{address}:{server.effective_port}/")
    try:
        server.run()
    finally:
        server.close()


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
