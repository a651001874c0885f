"""Whole pipelines in Python: one module each, with a build function and a `main`.

    from penstock.pipelines.spanner_to_files import spanner_to_files
    files = spanner_to_files(pipeline, project="my-project", …, output="/data/orders")

A build function applies its transforms to a Beam pipeline and does not depend on a runner. The template of the
same name describes its arguments. Import only the modules that you need: each needs the clients of its systems.
"""
