#!/usr/bin/env bash
# An attack mix next to honest clients: some kinds for 2 s each, or with LOWKEY_CASE_STEP=1 all kinds for 5 s. Skipped
# (77) without Python.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
length=(--quick)
[ "${LOWKEY_CASE_STEP-}" != 1 ] || length=(-s 5)
here=$(cd "$(dirname "$0")" && pwd)
PYTHONDONTWRITEBYTECODE=1 timeout 3000 python3 "$here/attack_serve.py" "$bin" "${length[@]}"
