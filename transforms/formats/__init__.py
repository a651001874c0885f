"""Record formats: pure functions from a `ChangeEvent` to the records that consumers know, and parsers back.

| Module | Format |
|---|---|
| `debezium` | Debezium JSON: key, value, tombstones, with or without schemas |

A format is a function of one event to a list of `FormattedRecord`s. `FormatEvents` applies it in a pipeline.
"""
