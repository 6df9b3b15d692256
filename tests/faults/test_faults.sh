#!/usr/bin/env bash
# Lets system calls on the program's files fail: faults.py says how each run must end. One fault in LOWKEY_CASE_STEP
# times 10 is tried, all with LOWKEY_CASE_STEP=1. Skipped (77) without Python, and not on Linux on x86-64.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
build=${LOWKEY_BUILD:?set LOWKEY_BUILD to the build folder}
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { echo "no Python"; exit 77; }
[ -f "$build/tests/libfailio.so" ] || { echo "no libfailio.so: sanitizers, or not Linux on x86-64"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in qwen2-bpe llama-spm; do
  "$build/tests/write_tiny_models" "$work" "$name" >/dev/null || { echo "FAILED: cannot write the models"; exit 1; }
done
ulimit -c 0 # no core files
PYTHONDONTWRITEBYTECODE=1 timeout 3500 python3 "$here/faults.py" "$bin" "$build/tests/libfailio.so" "$work"
