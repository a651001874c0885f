"""Records the golden files of this folder: Debezium's connector and `pgoutput` on one history of one server.

    python -m tests.golden.postgres.record

The files are JSON in gzip. `log.json.gz` has the messages of `pgoutput` and the answers of the catalogue,
`<configuration>.json.gz` the records of the connector. Schemas stand once in `schemas`; records hold their index.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.debezium_engine import VERSION, record_history

HERE = Path(__file__).parent
SERVER = 17


def main() -> None:
    with PostgresServer.start(version=SERVER) as server:
        records, log = record_history(server)
    write("log", {"server": SERVER, **log})
    for name, found in records.items():
        write(name, {"connector": VERSION, "server": SERVER, **packed(found)})


def write(name: str, content: dict[str, Any]) -> None:
    # Without a time in the header, equal content has equal bytes.
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    (HERE / f"{name}.json.gz").write_bytes(gzip.compress(data, mtime=0))


def packed(records: list[Any]) -> dict[str, Any]:
    """Return records with each schema once. Headers of the connector's own context are left out."""
    numbers: dict[str, int] = {}

    def short(part: Any) -> Any:
        if part is None:
            return None
        return [numbers.setdefault(json.dumps(part["schema"]), len(numbers)), part["payload"]]

    found = [
        [
            topic,
            short(key),
            short(value),
            [[name, short(each)] for name, each in headers if "context" not in name],
        ]
        for topic, key, value, headers in records
        if not topic.startswith("__debezium-heartbeat")
    ]
    return {"schemas": [json.loads(schema) for schema in numbers], "records": found}


if __name__ == "__main__":
    main()
