"""The service and the tables of the source's tests."""

from tests.integration.ydb.conftest import new_table, service

__all__ = ["new_table", "service"]
