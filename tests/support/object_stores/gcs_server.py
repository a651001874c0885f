"""A stand-in for Google Cloud Storage in memory: the part of its XML API that obstore sends, without authentication.

    python tests/support/object_stores/gcs_server.py PORT BUCKET

It is written from the documentation of the XML API and for obstore's requests, so it is no independent check.
"""

from __future__ import annotations

import email.utils
import hashlib
import itertools
import sys
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.sax.saxutils import escape

PAGE = 1000


@dataclass(frozen=True, slots=True)
class Stored:
    """An object: its content, and the generation that each write changes."""

    content: bytes
    generation: int
    modified: float = field(default_factory=time.time)

    def headers(self) -> list[tuple[str, str]]:
        return [
            ("ETag", f'"{hashlib.md5(self.content).hexdigest()}"'),
            ("x-goog-generation", str(self.generation)),
            ("Last-Modified", email.utils.formatdate(self.modified, usegmt=True)),
        ]


class Objects:
    """The objects of all buckets. For several threads."""

    def __init__(self) -> None:
        self._stored: dict[tuple[str, str], Stored] = {}
        self._generations = itertools.count(int(time.time() * 1e6))
        self._lock = threading.Lock()

    def put(self, bucket: str, key: str, content: bytes, generation: str | None) -> Stored | None:
        """Store an object; None if its generation is not the given one (0: there is no object)."""
        with self._lock:
            found = self._stored.get((bucket, key))
            if generation is not None and (found.generation if found else 0) != int(generation):
                return None
            stored = self._stored[bucket, key] = Stored(content, next(self._generations))
            return stored

    def get(self, bucket: str, key: str) -> Stored | None:
        return self._stored.get((bucket, key))

    def delete(self, bucket: str, key: str) -> bool:
        with self._lock:
            return self._stored.pop((bucket, key), None) is not None

    def list(self, bucket: str, prefix: str, after: str) -> list[tuple[str, Stored]]:
        with self._lock:
            found = [(key, stored) for (each, key), stored in self._stored.items() if each == bucket]
        return sorted((key, stored) for key, stored in found if key.startswith(prefix) and key > after)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects = Objects()
    bucket = ""

    def __getattr__(self, name: str) -> Any:
        # The base class calls do_GET, do_PUT and so on.
        if name.startswith("do_"):
            return self._do
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        """Silent."""

    def _do(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        bucket, _, key = url.path.lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if bucket != self.bucket:
            self._fail(404, "NoSuchBucket")
        elif not key:
            self._list(bucket, query)
        elif self.command == "PUT":
            self._put(bucket, urllib.parse.unquote(key), body)
        elif self.command == "DELETE":
            deleted = self.objects.delete(bucket, urllib.parse.unquote(key))
            self._answer(204) if deleted else self._fail(404, "NoSuchKey")
        else:
            self._get(bucket, urllib.parse.unquote(key))

    def _put(self, bucket: str, key: str, body: bytes) -> None:
        if source := self.headers.get("x-goog-copy-source"):
            from_bucket, _, from_key = urllib.parse.unquote(source).lstrip("/").partition("/")
            found = self.objects.get(from_bucket, from_key)
            if found is None:
                return self._fail(404, "NoSuchKey")
            body = found.content
        stored = self.objects.put(bucket, key, body, self.headers.get("x-goog-if-generation-match"))
        if stored is None:
            return self._fail(412, "PreconditionFailed")
        self._answer(200, b"<CopyObjectResult/>" if source else b"", stored.headers())

    def _get(self, bucket: str, key: str) -> None:
        stored = self.objects.get(bucket, key)
        if stored is None:
            return self._fail(404, "NoSuchKey")
        self._answer(200, stored.content, stored.headers())

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix = query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        found = self.objects.list(bucket, prefix, after)
        page, delimiter = found[:PAGE], query.get("delimiter")
        folders = sorted(
            {
                prefix + key[len(prefix) :].split(delimiter)[0] + delimiter
                for key, _ in page
                if delimiter in key[len(prefix) :]
            }
            if delimiter
            else ()
        )
        files = [(key, each) for key, each in page if not delimiter or delimiter not in key[len(prefix) :]]
        more = len(found) > PAGE
        token = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if more else ""
        text = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        text += "".join(_entry(key, each) for key, each in files)
        text += "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
        )
        self._answer(200, f"<ListBucketResult>{text}</ListBucketResult>".encode())

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _answer(
        self, status: int, content: bytes = b"", headers: list[tuple[str, str]] | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers or ():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _entry(key: str, stored: Stored) -> str:
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
    tag = escape(dict(stored.headers())["ETag"])
    size = len(stored.content)
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
        f"<Size>{size}</Size><ETag>{tag}</ETag></Contents>"
    )


if __name__ == "__main__":
    Handler.bucket = sys.argv[2]
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
