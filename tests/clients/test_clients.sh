#!/usr/bin/env bash
# Calls of client packages against a tiny model. $LOWKEY_CLIENTS_PYTHON names a Python that has them
# (docs/clients.md); packages that are missing are skipped, and without any the test is (77).
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
python=${LOWKEY_CLIENTS_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "$python is not installed"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
PYTHONDONTWRITEBYTECODE=1 timeout 600 "$python" "$here/check_clients.py" "$bin"
