#!/usr/bin/env bash
# How `lowkey serve` starts and stops: signals, limits of files and descriptors, the service manager,
# key files. Skipped (77) if the default model is not available.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
model=${LOWKEY_MODEL:-${LOWKEY_MODELS:-${LOWKEY_CACHE:-$HOME/.cache/lowkey}/models}/SmolLM2-135M-Instruct.Q4_1.gguf}
here=$(cd "$(dirname "$0")" && pwd)
[ -f "$model" ] || { echo "no model at $model"; exit 77; }
timeout 600 python3 "$here/stop_check.py" "$bin" "$model"
