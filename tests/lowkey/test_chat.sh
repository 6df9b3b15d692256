#!/usr/bin/env bash
# `lowkey chat` in a pseudo-terminal and in a pipe, with a tiny random model. Skipped (77) without Python.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$here/../serve timeout 600 python3 "$here/chat_check.py" "$bin" "$work"
