#!/usr/bin/env bash
# Uses the web page in Chromium, at two widths and in both themes. Skipped (77) without Chromium.
set -u

bin=${LOWKEY_BIN:-build/lowkey}
[ -x "$bin" ] || { echo "skipped: $bin is not built"; exit 77; }
exec python3 "$(dirname "$0")/page_check.py" "$bin"
