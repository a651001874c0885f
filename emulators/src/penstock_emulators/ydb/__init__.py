"""A test service with YDB's discovery, table and topic services, for changefeeds.

    with YdbEmulator.start() as ydb:
        ydb.control.create_table("orders", columns={"id": "Uint64", "note": "Utf8"}, key=["id"])
        ydb.control.add_changefeed("orders", "feed", mode="NEW_IMAGE", virtual_timestamps=True)
        ydb.control.commit([["upsert", "orders", [1], {"note": "x"}]])

The real `ydb` client works against it. It is written from YDB's documentation, its protocol files and its source code,
and imports nothing of a reader. `docs/ydb.md` says what it cannot prove.

`topic` and `database` are the rules, pure. `records` makes the records of each format. `read_session` is one StreamRead
call. `services` and `server` are gRPC, `control` drives the service from another process.
"""

from penstock_emulators.ydb.process import YdbEmulator

__all__ = ["YdbEmulator"]
