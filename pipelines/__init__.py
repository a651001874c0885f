"""Whole pipelines in Python: any source of `sources` to any sink of `sinks`.

    from penstock.pipelines.source_to_sink import build
    files = build(pipeline, "spanner", "files", {"project": "my-project", …, "output": "/data/orders"})

`build` applies the transforms to a Beam pipeline and does not depend on a runner. The template of the same name
describes the parameters. The modules `…_to_files` are programs, for `python -m` and `spark-submit`.
"""
