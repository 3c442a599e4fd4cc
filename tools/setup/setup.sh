#!/bin/sh
# Finds a Python that is new enough and hands over to the package tools.setup, which does the work.
set -eu
cd "$(dirname "$0")/../.."

for python in ${PYTHON:-.venv/bin/python python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        exec "$python" -m tools.setup "$@"
    fi
done

{
    echo "setup: no Python 3.11 or newer was found (looked for: ${PYTHON:-python3, python3.14 to python3.11})."
    echo "  Debian 12 or newer, Ubuntu 24.04 or newer:  apt install python3"
    echo "  Ubuntu 22.04:                               apt install python3.11"
    echo "  A Python that is not on the PATH:           make ... PYTHON=/path/to/python3.12"
} >&2
exit 1
