"""The parts that all sources share. No module here knows a client.

A source inherits `read_fn`, `transform`, `tracker`, `watermark`, `coders` and `metrics`, and implements the interface
in `frontier`. It writes a `partition_stream`, which `stream_reader`, `partition_prefetch` and `partition_pool` read
ahead. `prefetch` has the interfaces between them and the DoFn. `flat` and `flat_tracker` are for sources without
lineage. `backoff`, `status`, `connection`, `settings`, `source`, `arguments`, `packing`, `process_local` and `protobuf`
are tools. `outputs` has what the DoFn emits, `undecodable` is the error output. `tests/conformance/toy_source.py` is an
example.
"""
