"""Object stores: S3, Google Cloud Storage and Azure Blob Storage, for checkpoints and for output.

    location = locate("s3://bucket/checkpoints/orders?region=eu-west-1")
    store = store_at(location)
    store.create("records/000000000001.record", b"…")   # True: the object has these bytes

The runner and the sinks use this package through `penstock.runner.store` and `penstock.io.staging`. The library
obstore is imported at the first request, so paths of local disks work without it. See docs/object-stores.md.
"""

from penstock.object_stores.client import store_at
from penstock.object_stores.errors import StoreError, StoreRefusedError, StoreUnavailableError
from penstock.object_stores.location import Location, locate
from penstock.object_stores.store import ObjectStore

__all__ = [
    "Location",
    "ObjectStore",
    "StoreError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "locate",
    "store_at",
]
