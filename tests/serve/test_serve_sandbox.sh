#!/usr/bin/env bash
# `lowkey serve --sandbox` answers, saves, restores and stores sessions, and every thread is restricted.
# Skipped (77) if the default model is missing or the kernel has no Landlock.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
cache=${LOWKEY_CACHE:-$HOME/.cache/lowkey}
model=${LOWKEY_MODEL:-${LOWKEY_MODELS:-$cache/models}/SmolLM2-135M-Instruct.Q4_1.gguf}
here=$(cd "$(dirname "$0")" && pwd)
[ -f "$model" ] || { echo "no model at $model"; exit 77; }
python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(444, None, 0, 1) < 1)' ||
  { echo "the kernel has no Landlock"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
timeout 300 python3 "$here/sandbox_check.py" "$bin" "$model" "$work"
