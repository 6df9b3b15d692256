#!/usr/bin/env bash
# The fuzz targets on their seeds, and on 40 variants of each (LOWKEY_CASE_STEP=1: 1000). Skipped (77) without Python.
set -u

command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
count=40
[ "${LOWKEY_CASE_STEP-}" != 1 ] || count=1000
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$here/make_seeds.py" "$work" || exit 1
TMPDIR=$work timeout 1800 "$LOWKEY_BUILD/tests/replay_seeds" "$work" "$count"
