"""The options of YDB's source, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from penstock.io.change_streams.options import StreamOptions
from penstock.options import Accepts, options
from penstock.timestamps import Timelike


@options
class YdbChangefeedOptions(StreamOptions):
    """The options of `ReadFromYdbChangefeed`."""

    endpoint: Annotated[
        str,
        Accepts(
            pattern=r"grpcs?://.+:\d+",
            words="grpc://host:port or grpcs://host:port",
            example="grpcs://ydb.example.org:2135",
        ),
    ]
    """Endpoint of YDB, grpc://host:port, or grpcs://host:port for TLS."""
    database: Annotated[
        str, Accepts(pattern="/.*[^/]", words="an absolute path, such as /prod/shop", example="/prod/shop")
    ]
    """Absolute path of the database."""
    table: Annotated[
        str,
        Accepts(pattern="[^/].*", words="a path without a slash at its beginning", example="sales/orders"),
    ]
    """Path of the table below the database."""
    changefeed: Annotated[str, Accepts(pattern="[^/]+", words="a bare name", example="feed")]
    """Name of the changefeed."""
    start: Timelike | None = None
    """First commit time to read, inclusive. Default: everything that the changefeed has, with its initial scan."""
    consumer: Annotated[str | None, Accepts(example="penstock")] = None
    """Consumer of the topic whose offsets are committed after each checkpoint: then lag can be seen in YDB, and an
    important consumer keeps what was not read. Default: none."""
    delivery_seconds: Annotated[float, Accepts(minimum=0, maximum=86_400)] = 10.0
    """Time, in seconds, that YDB may need to write a change to the topic. The watermark of a changefeed without
    barriers is so much behind."""
    snapshot: Annotated[Literal["never", "initial"] | bool | None, Accepts(example="initial")] = None
    """Initial demands a changefeed with INITIAL_SCAN whose first row can still be read. Never leaves out the rows of
    the scan. Default: rows of a scan are written if the changefeed has any."""
    token: Annotated[str | None, Accepts(example="${env:YDB_TOKEN}")] = None
    """Access token. It is never shown."""
    user: Annotated[str | None, Accepts(example="penstock")] = None
    """User of YDB, with password."""
    password: Annotated[str | None, Accepts(example="${env:YDB_PASSWORD}")] = None
    """Password of the user. It is never shown."""
    service_account_file: Annotated[str | None, Accepts(example="/etc/penstock/key.json")] = None
    """File on the workers with the key of a service account, for Yandex Cloud."""
    metadata_credentials: bool = False
    """Whether to take tokens from the metadata service of the virtual machine."""
    root_certificates: Annotated[str | None, Accepts(example="/etc/penstock/ca.pem")] = None
    """PEM file on the workers with certificates of authorities, for grpcs."""
    heartbeat_seconds: Annotated[float, Accepts(minimum=0.05, maximum=60)] = 1.0
    """Interval, in seconds, at which YDB is asked about idle partitions."""
    max_concurrent_partitions: int = 32
    """Number of topic partitions that one worker process reads at once."""
