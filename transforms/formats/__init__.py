"""Record formats: pure functions from a `ChangeEvent` to the records that consumers know.

| Module | Format |
|---|---|
| `debezium` | Debezium JSON: key, value, tombstones, with or without schemas |
| `debezium_transaction` | Debezium's transaction metadata |
| `ydb`, `ydb_parse` | YDB changefeed: five modes, JSON and its Debezium flavour; and back |
| `dynamodb` | DynamoDB Streams JSON, of AWS and of YDB's document tables |
| `event_envelope` | events with all their parts |
| `avro`, `protobuf` | converters: the binary forms of `debezium` and `event_envelope`, with a schema registry |
| `cloudevents` | CloudEvents in structured JSON around any other format (extra `cloudevents`) |
| `google_templates` | rows of Google's templates: Spanner to BigQuery, Bigtable change log |
| `spanner_lines`, `bigtable_change_log` | lines of JSON from native records, for `penstock run` |
| `capture` | refuses a capture type that cannot satisfy a mode |

A format is a function of one event to a list of `FormattedRecord`s. `FormatEvents` (`format_events`)
applies it in a pipeline. `penstock.transforms.parsers` reads records back, for consumers.
"""
