#!/usr/bin/env bash
# The table of combinations: docs/combinations.md has what the program prints, and the JSON says the same.
#
# LOWKEY_BIN: the program
set -u

page=$(cd "$(dirname "$0")/../../docs" && pwd)/combinations.md
# shellcheck source=../support/program.sh
. "$(dirname "$0")/../support/program.sh" || exit 1
unset COLUMNS
export NO_COLOR=1

good recipes --combinations
awk '/^<!-- output/ { found = 1 } found && /^```/ { inside++; next } found && inside == 1' "$page" >block
diff block out >&2 || fail "docs/combinations.md differs from the output of lowkey recipes --combinations"
cp out table
good recipes --combinations --json
json 'len(d["combinations"]) > 200 and all(set(c) == {"a", "b", "reason", "example"} for c in d["combinations"])'
json 'sum(c["reason"] is not None for c in d["combinations"]) == sum(w.isalpha() and len(w) == 1 for l in open("table").read().split("\n\n")[0].split("\n") for w in l[24:].split())'
bad "--combinations takes no recipes" recipes --combinations best-3

[ $failures = 0 ] || exit 1
echo "$count runs"
