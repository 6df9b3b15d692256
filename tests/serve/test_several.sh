#!/usr/bin/env bash
# `lowkey serve` with several models: which files it serves, and what it refuses. Skipped (77) without Python.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
PYTHONDONTWRITEBYTECODE=1 timeout 300 python3 "$here/several_check.py" "$bin"
