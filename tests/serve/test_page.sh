#!/usr/bin/env bash
# Runs the page's script with stubs for the browser. Skipped (77) without Node.
set -u

command -v node >/dev/null || { echo "node is not installed"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
timeout 60 node "$here/page_check.js" "$here/../../programs/serve/page.html"
