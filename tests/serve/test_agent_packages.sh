#!/usr/bin/env bash
# Runs agents from PyPI, unmodified, against `lowkey serve` with the default model. Skipped (77) unless
# $LOWKEY_AGENTS names a folder with a virtual environment for at least one of them (agent_packages.py).
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
cache=${LOWKEY_CACHE:-$HOME/.cache/lowkey}
model=${LOWKEY_MODEL:-${LOWKEY_MODELS:-$cache/models}/SmolLM2-135M-Instruct.Q4_1.gguf}
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
[ -n "${LOWKEY_AGENTS:-}" ] || { echo "LOWKEY_AGENTS names no folder with agents"; exit 77; }
[ -f "$model" ] || { echo "no model at $model"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
PYTHONDONTWRITEBYTECODE=1 python3 "$here/agent_packages.py" "$bin" "$model" "$LOWKEY_AGENTS"
