# What scripts that test the program from outside share: sourced, with `set -u` on. Leaves them in an empty
# folder that goes when they end.
#
# LOWKEY_BIN: the program.

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
[ -x "$bin" ] || { echo "FAILED: no program at $bin"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
count=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# bad WORDS ARGUMENT...: status 1, exactly one line on stderr that begins "lowkey: " and holds WORDS,
# nothing on stdout. Standard input is $input, or empty.
bad() {
  local words=$1 status
  shift
  count=$((count + 1))
  timeout 60 "$bin" "$@" <"${input:-/dev/null}" >out 2>err
  status=$?
  [ $status = 1 ] || fail "lowkey $*: status $status, expected 1"
  [ "$(wc -l <err)" = 1 ] || fail "lowkey $*: $(wc -l <err) lines on stderr: $(head -c 400 err)"
  grep -q '^lowkey: ' err || fail "lowkey $*: stderr is: $(head -c 400 err)"
  grep -qF -- "$words" err || fail "lowkey $*: expected '$words' in: $(head -c 400 err)"
  [ ! -s out ] || fail "lowkey $*: stdout is: $(head -c 400 out)"
}

# good ARGUMENT...: status 0 and a silent stderr; leaves stdout in the file out.
good() {
  local status
  count=$((count + 1))
  timeout 300 "$bin" "$@" <"${input:-/dev/null}" >out 2>err
  status=$?
  [ $status = 0 ] || fail "lowkey $*: status $status: $(head -c 400 err)"
  [ ! -s err ] || fail "lowkey $*: stderr is: $(head -c 400 err)"
}

# says WORDS: the last output holds them.
says() { grep -qF -- "$1" out || fail "expected '$1' in: $(head -c 600 out)"; }

# json EXPRESSION: with d the last output's JSON, the Python expression is true.
json() {
  python3 -m json.tool out >/dev/null || fail "not JSON: $(head -c 400 out)"
  python3 -c 'import json, sys
d = json.load(open("out"))
sys.exit(0 if eval(sys.argv[1]) else 1)' "$1" || fail "not true of the JSON: $1: $(head -c 600 out)"
}
