#!/usr/bin/env bash
# All templates at hand, ten conversations each, and random templates, compared with Jinja 2. Skipped (77) without it.
set -u

command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
python3 -c 'import jinja2' 2>/dev/null || { echo "jinja2 is not installed (apt-get install python3-jinja2)"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
cache=${LOWKEY_CACHE:-${HOME:?set HOME or LOWKEY_CACHE}/.cache/lowkey}
archive=$(find "$cache/download" -name 'llama_cpp_python-*.tar.gz' 2>/dev/null | head -n 1)
[ -n "$archive" ] || echo "skipped: the templates of llama.cpp, whose sources are not in $cache/download"
export PYTHONDONTWRITEBYTECODE=1
count=2000
[ "${LOWKEY_CASE_STEP-}" != 1 ] || count=40000
timeout 300 python3 "$here/compare_jinja.py" "$LOWKEY_BUILD/tests/render_chats" ${archive:+"$archive"} &&
  timeout 1800 python3 "$here/random_templates.py" "$LOWKEY_BUILD/tests/render_chats" $count
