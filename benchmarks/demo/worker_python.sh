#!/bin/sh
# The Python of Spark's workers, WORKER_PYTHON, without the archives of PySpark that Spark puts before the installed
# package. The modules of an archive are compiled at each start, which takes three times the CPU of the start, and Spark
# waits ten seconds for the process of a data source.
PYTHONPATH=$(printf %s "$PYTHONPATH" | sed 's#[^:]*/python/lib/[^:/]*\.zip:*##g')
export PYTHONPATH
exec "$WORKER_PYTHON" "$@"
