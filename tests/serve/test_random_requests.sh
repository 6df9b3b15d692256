#!/usr/bin/env bash
# 100 random requests (2,000 with LOWKEY_CASE_STEP=1), each with its own memory and CPU time measured. Skipped (77) without Python.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
count=100
[ "${LOWKEY_CASE_STEP-}" != 1 ] || count=2000
here=$(cd "$(dirname "$0")" && pwd)
PYTHONDONTWRITEBYTECODE=1 timeout 3000 python3 "$here/random_requests.py" "$bin" -n "$count"
