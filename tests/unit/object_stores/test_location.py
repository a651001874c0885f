"""Paths and URLs: what is understood, what is refused, and that no message shows a secret."""

from __future__ import annotations

import pickle

import pytest

from penstock.errors import UsageError
from penstock.object_stores.client import ObstoreRequests, _translated
from penstock.object_stores.location import Location, display_name, locate
from penstock.object_stores.requests import RequestRefusedError, RequestUncertainError


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/data/x", "/data/x"),
        ("file:///data/a%20b", "/data/a b"),
        ("file://localhost/d", "/d"),
        ("/a?b#c", "/a?b#c"),
    ],
)
def test_paths_and_file_urls_are_paths(text, path):
    assert locate(text) == path


def test_a_relative_path_is_resolved_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert locate("out") == str(tmp_path / "out")


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://bucket", Location("s3", "bucket", "")),
        ("s3a://bucket/a/b/", Location("s3", "bucket", "a/b")),
        ("s3://b/a%20b?region=eu-west-1", Location("s3", "b", "a%20b", region="eu-west-1")),
        ("s3://b?endpoint=http://h:9000/", Location("s3", "b", "", endpoint="http://h:9000")),
        ("gs://b/x?unavailable_seconds=5", Location("gs", "b", "x", unavailable_seconds=5)),
        ("az://c/x?account=mine", Location("az", "c", "x", account="mine")),
        ("abfss://c@mine.dfs.core.windows.net/x", Location("az", "c", "x", account="mine")),
    ],
)
def test_a_url_is_understood_and_written_back(url, location):
    assert locate(url) == location
    assert locate(str(location)) == location


def test_people_see_a_url_without_its_options():
    assert display_name("s3://b/x?endpoint=http://h:9000&region=r") == "s3://b/x"
    assert display_name("/data") == "/data"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hdfs://host/x",
        "wasbs://c@h/x",
        "s3:///x",
        "s3://b/a//x",
        "s3://b/../x",
        "s3://b/x#tiger",
        "s3://key:tiger@b/x",
        "s3://tiger@b/x",
        "s3://b:9000/x",
        "s3://b/x?secret=tiger",
        "s3://b/x?tiger",
        "s3://b/x?region=",
        "s3://b/x?region=a&region=b",
        "gs://b/x?region=a",
        "s3://b?endpoint=http://user:tiger@h",
        "s3://b?endpoint=h:9000",
        "s3://b?unavailable_seconds=0",
        "s3://b?unavailable_seconds=nan",
        "http://user:tiger@host/x",
        "file://host/x",
        "file:///x?tiger=1",
    ],
)
def test_a_wrong_url_is_refused_and_its_secrets_are_not_shown(url):
    with pytest.raises(UsageError) as refused:
        locate(url)
    assert "tiger" not in str(refused.value)


def test_requests_travel_to_workers_without_credentials(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tiger")
    requests = ObstoreRequests(Location("s3", "bucket", "x"))
    data = pickle.dumps(requests)
    assert pickle.loads(data) == requests
    assert b"tiger" not in data


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        (
            "PUT http://user:tiger@h/b - Server returned non-2xx status code: 503 X: <tiger>",
            RequestUncertainError,
            "503",
        ),
        ("Server returned non-2xx status code: 429 Too Many: ", RequestUncertainError, "429"),
        ("Server returned non-2xx status code: 500 tiger", RequestUncertainError, "status 500"),
        (
            "Server returned non-2xx status code: 403 Forbidden: <StringToSign>tiger",
            RequestRefusedError,
            "403",
        ),
        ("HTTP error: error sending request\nkind: Timeout, tiger", RequestUncertainError, "a time-out"),
        ("HTTP error: error sending request\nkind: Connect, tiger", RequestUncertainError, "no connection"),
        ("HTTP error: error decoding tiger", RequestUncertainError, "a lost connection"),
        ("Received redirect without LOCATION tiger", RequestRefusedError, "301"),
        ("Generic S3 error: builder error tiger", RequestRefusedError, "GenericError"),
    ],
)
def test_the_texts_of_the_library_are_classified_and_not_shown(text, kind, reason):
    error = _translated(text, "GenericError")
    assert type(error) is kind
    assert reason in str(error)
    assert "tiger" not in str(error)
