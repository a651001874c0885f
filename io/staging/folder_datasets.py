"""A folder of files as a dataset, by OpenLineage's names. Pure.

folder_dataset("s3://lake/shop?region=eu-west-1", "orders")     # s3://lake, shop/orders
"""

from __future__ import annotations

from urllib.parse import urlsplit

from penstock.datasets import Dataset
from penstock.errors import UsageError
from penstock.object_stores.location import Location, locate


def folder_dataset(location: str, folder: str = "") -> Dataset:
    """Return a folder below `location`: a path or a URL. Options of the URL, a user and a password are left out."""
    try:
        found = locate(location)
    except UsageError:  # of a file system that only the library of the sink knows, such as hdfs
        parts = urlsplit(location)
        found = Location(parts.scheme, parts.netloc.rpartition("@")[2], parts.path.strip("/"))
    if isinstance(found, str):
        return Dataset("file", f"{found}/{folder}" if folder else found)
    key = "/".join(part for part in (found.prefix, folder) if part)
    # As OpenLineage names the root of a bucket.
    return Dataset(_namespace(found), key or "/")


def _namespace(found: Location) -> str:
    if found.scheme == "az" and found.account:
        return f"abfss://{found.bucket}@{found.account}.dfs.core.windows.net"
    return f"{found.scheme}://{found.bucket}"
