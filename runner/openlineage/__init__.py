"""Events of a run for OpenLineage: its start and end, its datasets, and until when its targets are complete.

| Module | Content |
|---|---|
| `pipeline_datasets` | the datasets of a pipeline, from the transforms that tell theirs |
| `events` | the events: values to objects of the client's library. Pure; imports the extra `openlineage` |
| `run_reporter` | when an event is sent: a thread that never holds up the driver |
| `client` | the client, with its own configuration |

Only `client` and `events` import the library, and only for a pipeline with `--openlineage`.
"""
