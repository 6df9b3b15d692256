#!/usr/bin/env bash
# Lets allocations of the program fail: malloc_check.py says how each run must end. Skipped (77) with
# sanitizers, which bring their own allocator, and without Python or glibc.
#
# LOWKEY_MALLOC_SAMPLES: runs per command (default 40, or 200 with LOWKEY_CASE_STEP=1)
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
build=${LOWKEY_BUILD:?set LOWKEY_BUILD to the build folder}
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { echo "no Python"; exit 77; }
[ -f "$build/tests/libfailmalloc.so" ] || { echo "no libfailmalloc.so: sanitizers, or no glibc"; exit 77; }
if [ -z "${LOWKEY_MALLOC_SAMPLES-}" ]; then
  LOWKEY_MALLOC_SAMPLES=40
  [ "${LOWKEY_CASE_STEP-}" != 1 ] || LOWKEY_MALLOC_SAMPLES=200
fi
export LOWKEY_MALLOC_SAMPLES
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$build/tests/write_tiny_models" "$work" >/dev/null || { echo "FAILED: cannot write the models"; exit 1; }
ulimit -c 0 # no core files
timeout 3600 python3 "$here/malloc_check.py" "$bin" "$build/tests/libfailmalloc.so" "$work"
