"""Record formats: pure functions from a `ChangeEvent` to the records that consumers know, and parsers back.

| Module | Format |
|---|---|
| `debezium` | Debezium JSON: key, value, tombstones, with or without schemas |
| `debezium_parse`, `debezium_transaction` | the way back; transaction metadata records, both ways |
| `ydb`, `ydb_parse` | YDB changefeed: five modes, JSON and its Debezium flavour; and back |

A format is a function of one event to a list of `FormattedRecord`s. `FormatEvents` applies it in a pipeline.
"""
