#!/usr/bin/env bash
# The kernels compile for real cards: none spills or takes more registers than instructions.txt allows, and main loops have
# not grown. Attention for heads of 128 channels on sm_90a; with LOWKEY_CASE_STEP=1 (scripts/test long) all kernels, also on
# sm_80 and sm_120. Skipped without nvcc.
set -u

source=${LOWKEY_SOURCE:?set LOWKEY_SOURCE to the source directory}
build=${LOWKEY_BUILD:?set LOWKEY_BUILD to the build directory}
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }
architectures=()
[ "${LOWKEY_CASE_STEP:-4}" != 1 ] || architectures=(all)
exec nice -n 5 python3 "$source/tests/cuda/compile_check.py" "$source" "$build/cuda-check" "${architectures[@]}"
