#!/bin/sh
# Make or refresh the virtual environment: tools/setup.sh FOLDER EXTRAS (PYTHON may name the interpreter).
set -eu
venv=$1
extras=$2

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

if ! [ -x "$venv/bin/python" ]; then
    python=
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if new_enough "$candidate"; then python=$candidate; break; fi
    done
    if [ -z "$python" ]; then
        echo "The tests of Penstock need Python 3.11 or newer; looked at: ${PYTHON:-python3, python3.13, python3.12, python3.11}." >&2
        echo "Install one, then name it: make PYTHON=/path/to/python3.11 ..." >&2
        exit 2
    fi
    "$python" -m venv "$venv" || {
        echo "Python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 2
    }
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extras]" --editable ./emulators

# Spark's JVM starts in half the time with an archive of its classes. Without Java there is none, which the tests report.
"$venv/bin/python" -m penstock.runner.spark.archive || true
