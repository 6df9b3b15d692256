#!/usr/bin/env bash
# The table of combinations: the text and the JSON say the same.
#
# LOWKEY_BIN: the program
set -u

# shellcheck source=../support/program.sh
. "$(dirname "$0")/../support/program.sh" || exit 1
unset COLUMNS
export NO_COLOR=1

good recipes --combinations
cp out table
good recipes --combinations --json
json 'len(d["combinations"]) > 200 and all(set(c) == {"a", "b", "reason", "example"} for c in d["combinations"])'
json 'sum(c["reason"] is not None for c in d["combinations"]) == sum(w.isalpha() and len(w) == 1 for l in open("table").read().split("\n\n")[0].split("\n") for w in l[24:].split())'
bad "--combinations takes no recipes" recipes --combinations best-3

[ $failures = 0 ] || exit 1
echo "$count runs"
