#!/usr/bin/env bash
# The Python package on the shared library of the build folder: pytest, and mypy --strict if it is installed.
#
# LOWKEY_PYTHON: an interpreter with cffi, numpy and pytest (default: python3)
set -euo pipefail

: "${LOWKEY_BUILD:?the build directory}" "${LOWKEY_SOURCE:?the source directory}"
python=${LOWKEY_PYTHON:-python3}
skip() { echo "skipped: $*"; exit 77; }

[ -e "$LOWKEY_BUILD/liblowkey.so" ] || skip "liblowkey.so was not built"
for package in cffi numpy pytest; do
  "$python" -c "import $package" 2>/dev/null || skip "$python has no package $package"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$LOWKEY_SOURCE/python/lowkey" "$work/lowkey"
"$python" "$LOWKEY_SOURCE/python/generate_api.py" "$work/lowkey/_api.py" "$LOWKEY_SOURCE"/include/lowkey{,_serve,_draft,_cluster,_lab}.h >/dev/null
export LOWKEY_BUILD PYTHONPATH=$work PYTHONDONTWRITEBYTECODE=1 LOWKEY_LIBRARY=$LOWKEY_BUILD/liblowkey.so

cd "$LOWKEY_SOURCE/tests/python"
"$python" -m pytest -q -p no:cacheprovider .
if "$python" -c 'import mypy' 2>/dev/null; then
  cd "$LOWKEY_SOURCE"
  "$python" -m mypy --cache-dir "$work/mypy"
else
  echo "test_python: mypy is not installed; types were not checked"
fi
echo "test_python: passed"
