#!/bin/sh
# Make or refresh the virtual environment: tools/setup.sh FOLDER LOCK (PYTHON may name the interpreter).
#
# LOCK is `run` or `test`, for a file in requirements/, or `uv` for the installer alone. uv installs a lock without
# resolving anything, and environments share the files in its cache. Where uv cannot be had, pip installs the same lock.
set -eu
venv=$1
lock=$2

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }

if ! [ -x "$venv/bin/python" ]; then
    python=
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if supported "$candidate"; then python=$candidate; break; fi
    done
    if [ -z "$python" ]; then
        echo "The demo and the tests of Penstock need Python 3.11 to 3.13; looked at: ${PYTHON:-python3, python3.13, python3.12, python3.11}." >&2
        echo "Install one, then name it: make PYTHON=/path/to/python3.11 ..." >&2
        exit 2
    fi
    echo "Making the virtual environment $venv"
    "$python" -m venv "$venv" || {
        echo "Python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 2
    }
fi

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

# Packages that are published without a wheel are built with the setuptools of the lock, not with the newest. Spark is one:
# 430 MB of jars, which are compressed already. To compress them again costs more than the rest of the set-up.
with_uv() {
    [ -x "$venv/bin/uv" ] || return 1
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --require-hashes \
        --config-settings-package 'pyspark:--build-option=--compression=stored' \
        --build-constraints "$file" --requirement "$file" || return 1
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --no-build-isolation $checkout
}

with_pip() {
    echo "uv did not install the packages; trying pip, which takes some minutes"
    pip install --quiet --no-deps --require-hashes --requirement "$file"
    pip install --quiet --no-deps --no-build-isolation $checkout
}

if ! [ "$venv/bin/uv" -nt requirements/uv.txt ]; then
    pip install --quiet --require-hashes --requirement requirements/uv.txt || true
    ! [ -x "$venv/bin/uv" ] || touch "$venv/bin/uv"
fi
[ "$lock" != uv ] || exit 0

file=requirements/$lock.txt
checkout="--editable . --editable ./emulators"
# uv does not read the configuration of pip.
index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(pip config get global.index-url 2>/dev/null || true)}}
[ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
echo "Installing the $(grep -c == "$file") packages of $file (up to a minute, or seconds if the cache of uv has them)"
with_uv || with_pip

# Spark's JVM starts in half the time with an archive of its classes. Making it costs as much as the demo's three starts
# would save. Without Java there is none, which the tests report.
if [ "$lock" = test ]; then
    echo "Preparing Spark (ten seconds)"
    "$venv/bin/python" -m penstock.runner.spark.archive || true
fi
