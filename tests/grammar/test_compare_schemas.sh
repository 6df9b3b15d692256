#!/usr/bin/env bash
# Grammars of random schemas, compared with the validator jsonschema. Skipped (77) without it.
set -u

command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
python3 -c 'import jsonschema' 2>/dev/null ||
  { echo "jsonschema is not installed (apt-get install python3-jsonschema)"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
count=500
[ "${LOWKEY_CASE_STEP-}" != 1 ] || count=10000
export PYTHONDONTWRITEBYTECODE=1
timeout 1800 python3 "$here/compare_schemas.py" "$LOWKEY_BUILD/tests/walk_grammar" $count
