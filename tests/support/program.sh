# Helpers for tests that run the program: sourced, with `set -u` on. Changes to an empty folder that is
# removed at exit.
#
# LOWKEY_BIN: the program

support=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
[ -x "$bin" ] || { echo "FAILED: no program at $bin"; exit 1; }
export LOWKEY_TUNE=0 # nothing in the background
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
count=0

# write_tiny_model FILE: a tiny random model. Without Python the test is skipped.
write_tiny_model() {
  command -v python3 >/dev/null || { echo "no Python"; exit 77; }
  python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); import tiny_model; tiny_model.write_model(sys.argv[2])' \
    "$support/../serve" "$1" || { echo "FAILED: cannot write the model"; exit 1; }
}

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# bad TEXT ARGUMENT...: the program exits with status 1, prints exactly one line on stderr that starts with
# "lowkey: " and contains TEXT, and prints nothing on stdout. Standard input is $input, or empty.
bad() {
  local text=$1 status
  shift
  count=$((count + 1))
  timeout 60 "$bin" "$@" <"${input:-/dev/null}" >out 2>err
  status=$?
  [ $status = 1 ] || fail "lowkey $*: status $status, expected 1"
  [ "$(wc -l <err)" = 1 ] || fail "lowkey $*: $(wc -l <err) lines on stderr: $(head -c 400 err)"
  grep -q '^lowkey: ' err || fail "lowkey $*: stderr is: $(head -c 400 err)"
  grep -qF -- "$text" err || fail "lowkey $*: expected '$text' in: $(head -c 400 err)"
  [ ! -s out ] || fail "lowkey $*: stdout is: $(head -c 400 out)"
}

# good ARGUMENT...: the program exits with status 0 and prints nothing on stderr; stdout is left in the file out.
good() {
  local status
  count=$((count + 1))
  timeout 300 "$bin" "$@" <"${input:-/dev/null}" >out 2>err
  status=$?
  [ $status = 0 ] || fail "lowkey $*: status $status: $(head -c 400 err)"
  [ ! -s err ] || fail "lowkey $*: stderr is: $(head -c 400 err)"
}

# says TEXT: the last output contains TEXT.
says() { grep -qF -- "$1" out || fail "expected '$1' in: $(head -c 600 out)"; }

# json EXPRESSION: a Python expression that is true of the last output's JSON, d.
json() {
  python3 -m json.tool out >/dev/null || fail "not JSON: $(head -c 400 out)"
  python3 -c 'import json, sys
d = json.load(open("out"))
sys.exit(0 if eval(sys.argv[1]) else 1)' "$1" || fail "false for the JSON: $1: $(head -c 600 out)"
}
