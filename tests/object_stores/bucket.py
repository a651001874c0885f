"""A bucket as Amazon's own client sees it: the independent reader of what a pipeline wrote."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3
from botocore.config import Config
from typing_extensions import Self

from tests.object_stores.servers import BUCKET, KEYS


class Bucket:
    """The objects of an S3 server on a port of loopback."""

    def __init__(self, port: int) -> None:
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            region_name=KEYS["AWS_REGION"],
            config=Config(s3={"addressing_style": "path"}),
        )

    def tags(self, prefix: str) -> dict[str, str]:
        """Return the keys below a prefix, without those that have a part beginning with a dot; each with its ETag."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        found = {each["Key"]: each["ETag"] for page in pages for each in page.get("Contents", ())}
        return {key: tag for key, tag in found.items() if "/." not in key}

    def all_keys(self, prefix: str) -> list[str]:
        """Return all keys below a prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def download(self, prefix: str, folder: Path) -> Path:
        """Copy the visible objects below a prefix to a folder that does not have them yet, and return the folder."""
        for key in self.tags(prefix):
            target = folder / key.removeprefix(prefix + "/")
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        return folder

    def unfinished_uploads(self) -> int:
        """Return the number of multipart uploads that were begun and not ended."""
        return len(self._client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ()))


class Watcher:
    """Looks at the published objects while its context is open. `wrong` has a sentence for each that changed."""

    def __init__(self, bucket: Bucket, prefix: str, every_seconds: float = 0.5) -> None:
        self.wrong: list[str] = []
        self._bucket, self._prefix, self._every = bucket, prefix, every_seconds
        self._seen: dict[str, str] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher")

    def _run(self) -> None:
        while not self._end.wait(self._every):
            self._look()

    def _look(self) -> None:
        found = self._bucket.tags(self._prefix)
        self.wrong += [f"{key} disappeared" for key in self._seen if key not in found]
        self.wrong += [
            f"{key} changed" for key, tag in found.items() if self._seen.setdefault(key, tag) != tag
        ]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._look()
