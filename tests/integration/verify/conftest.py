"""A database with a publication, for jobs whose targets are compared with it."""

from __future__ import annotations

from tests.integration.postgres.conftest import database, server

__all__ = ["database", "server"]
