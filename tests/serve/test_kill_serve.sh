#!/usr/bin/env bash
# Signals at 15 random moments (200 with LOWKEY_CASE_STEP=1), after which nothing may be lost. Skipped (77) without Python.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
count=15
[ "${LOWKEY_CASE_STEP-}" != 1 ] || count=200
here=$(cd "$(dirname "$0")" && pwd)
PYTHONDONTWRITEBYTECODE=1 timeout 3000 python3 "$here/kill_serve.py" "$bin" -n "$count"
