"""A bucket as the client of its cloud sees it: the independent reader of what a pipeline wrote."""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import boto3
from botocore.config import Config

from tests.support.looking import Looking
from tests.support.object_stores.servers import AZURE_ACCOUNT, BUCKET, KEYS, RunningServer, signed_for_azure


class Bucket:
    """The objects of a server on a port of loopback, read without Penstock and obstore. Here S3, by Amazon's client."""

    def __init__(self, port: int) -> None:
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            region_name=KEYS["AWS_REGION"],
            config=Config(s3={"addressing_style": "path"}),
        )

    def _tags(self, prefix: str) -> dict[str, str]:
        """Return all keys below a prefix, each with its ETag."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return {each["Key"]: each["ETag"] for page in pages for each in page.get("Contents", ())}

    def _content(self, key: str) -> bytes:
        content: bytes = self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    def unfinished_uploads(self) -> int:
        """Return the number of multipart uploads that were begun and not ended."""
        return len(self._client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ()))

    def tags(self, prefix: str) -> dict[str, str]:
        """Return the keys below a prefix, without those that have a part beginning with a dot; each with its ETag."""
        return {key: tag for key, tag in self._tags(prefix).items() if "/." not in key}

    def all_keys(self, prefix: str) -> list[str]:
        """Return all keys below a prefix."""
        return list(self._tags(prefix))

    def download(self, prefix: str, folder: Path) -> Path:
        """Copy the visible objects below a prefix to a folder that does not have them yet, and return the folder."""
        for key in self.tags(prefix):
            target = folder / key.removeprefix(prefix + "/")
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self._content(key))
        return folder


class AzureContainer(Bucket):
    """A container of Azurite, read by plain requests of its REST API.

    Microsoft's client would do too, but Beam imports it wherever it is installed: 0.4 CPU s in each process.
    """

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def _tags(self, prefix: str) -> dict[str, str]:
        return {
            blob.findtext("Name", ""): blob.findtext("Properties/Etag", "")
            for blob in self._blobs(prefix=prefix)
        }

    def _content(self, key: str) -> bytes:
        return self._get(f"/{urllib.parse.quote(key)}", {})

    def unfinished_uploads(self) -> int:
        """Return the number of blobs that have only blocks that were not committed."""
        return sum(
            blob.find("Properties/Etag") is None and int(blob.findtext("Properties/Content-Length") or 0) == 0
            for blob in self._blobs(include="uncommittedblobs")
        )

    def _blobs(self, **query: str) -> Iterator[ElementTree.Element]:
        query |= {"restype": "container", "comp": "list"}
        while True:
            page = ElementTree.fromstring(self._get("", query))
            yield from page.iterfind("Blobs/Blob")
            query["marker"] = page.findtext("NextMarker") or ""
            if not query["marker"]:
                return

    def _get(self, path: str, query: dict[str, str]) -> bytes:
        path = f"/{AZURE_ACCOUNT}/{BUCKET}{path}"
        request = urllib.request.Request(
            f"{self._address}{path}?{urllib.parse.urlencode(query)}",
            headers=signed_for_azure("GET", path, query),
        )
        with urllib.request.urlopen(request) as answer:
            content: bytes = answer.read()
        return content


class GoogleBucket(Bucket):
    """A bucket of our stand-in for Google Cloud Storage, read by plain requests of the XML API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/{BUCKET}"

    def _tags(self, prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        query, more = {"list-type": "2", "prefix": prefix}, True
        while more:
            with urllib.request.urlopen(f"{self._url}?{urllib.parse.urlencode(query)}") as answer:
                page = ElementTree.parse(answer)
            found |= {
                each.findtext("Key", ""): each.findtext("ETag", "") for each in page.iterfind("Contents")
            }
            more = page.findtext("IsTruncated") == "true"
            query["continuation-token"] = page.findtext("NextContinuationToken", "")
        return found

    def _content(self, key: str) -> bytes:
        with urllib.request.urlopen(f"{self._url}/{urllib.parse.quote(key)}") as answer:
            content: bytes = answer.read()
        return content

    def unfinished_uploads(self) -> int:
        """The stand-in has no multipart uploads, so a request for one would have failed."""
        return 0


def bucket_of(server: RunningServer) -> Bucket:
    """Return the reader of a server's bucket."""
    kinds = {"s3": Bucket, "az": AzureContainer, "gs": GoogleBucket}
    return kinds[server.kind.scheme](server.port)


class Watcher(Looking):
    """Looks at the published objects while its context is open. `wrong` has a sentence for each that changed.

    Marks that say until when the output is complete are not looked at: a newer one replaces them.
    """

    def __init__(self, bucket: Bucket, prefix: str, every_seconds: float = 0.5) -> None:
        self.wrong: list[str] = []
        super().__init__(every_seconds)
        self._bucket, self._prefix = bucket, prefix
        self._seen: dict[str, str] = {}

    def look(self) -> None:
        """Look once."""
        tags = self._bucket.tags(self._prefix)
        found = {key: tag for key, tag in tags.items() if not key.startswith(f"{self._prefix}/_complete/")}
        self.wrong += [f"{key} disappeared" for key in self._seen if key not in found]
        self.wrong += [
            f"{key} changed" for key, tag in found.items() if self._seen.setdefault(key, tag) != tag
        ]
