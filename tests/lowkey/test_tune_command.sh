#!/usr/bin/env bash
# Tests of `lowkey tune` with a tiny random model: bad input, the recipe file, resuming, JSON and the picture.
set -u

tests=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=../support/program.sh
. "$tests/support/program.sh" || exit 1
write_tiny_model tiny.gguf
export LOWKEY_MODEL=$work/tiny.gguf
for i in $(seq 1 400); do echo "$i fish and $((i * i)) bicycles, $((i * 7 % 13)) more"; done >text

head -n 20 text >short
bad 'no text: give --text FILE' tune --bits 3
bad 'give one of --bits, --like, --budgets, --memory and --max-kl, not 0' tune --text text -o out.recipe
bad 'give one of --bits, --like, --budgets, --memory and --max-kl, not 2' tune --text text --bits 3 --like best-3
bad 'give -c N' tune --text text --memory 1
bad 'cannot open absent' tune --text absent --bits 3
bad 'is not a recipe' tune --text text --like best-9
bad 'less than 2 chunks of 8192' tune --thorough --text text --bits 3 --chunk 8k
bad 'less than 2 chunks of 512' tune --text short --bits 3
bad '--no-prompt needs --thorough' tune --text text --bits 3 --no-prompt
bad 'less than one chunk' tune --thorough --text text --bits 3 --chunk 4k --chunks 1
bad 'less than 99 chunks' tune --text text --bits 3 --chunk 320 --chunks 99
bad 'too few' tune --text text --bits 0.6 --chunk 320 --chunks 1
bad 'in increasing order' tune --text text --bits 3 --chunk 320 --measure-bits 3,2
bad 'cannot be scored' tune --text text --bits 3 --chunk 320 --chunks 1 --score 320

# An estimate: the recipe has the promised size, and the state has everything.
estimate=(-t 1 --text text --chunk 320 --score 40 -c 4k)
good tune "${estimate[@]}" --like best-3 -o estimated.recipe
says 'bits per value, KL '
says 'sink 4: f16'
cp out table
grep -q '^# size: ' estimated.recipe || fail "the recipe file lacks its size"
grep -q '^# checked' estimated.recipe && fail "the recipe file has a check without a text for it"
good plan --kv estimated.recipe --kv best-3 -c 4k --json
json 'd["plans"][0]["cache_bytes"] <= d["plans"][1]["cache_bytes"]'
cp estimated.recipe before.recipe
good tune "${estimate[@]}" --like best-3 -o estimated.recipe
cmp -s out table || fail "the second run prints something else"
cmp -s estimated.recipe before.recipe || fail "the second run writes another recipe"
good tune "${estimate[@]}" --like best-3 --state other.state
cmp -s out table || fail "an estimate without the state differs"
good tune "${estimate[@]}" --bits 5 --check-text text --check-chunks 1 --kv f16 --json --state estimated.recipe.state
json 'd["results"][-1]["kv"] == d["kv"] and d["estimate"] > 0'
rm -f estimated.recipe other.state

# Shares of the rows that the layers keep.
budgets=(-t 1 --text text --chunk 320 --chunks 2 -c 4k)
bad 'must have' tune "${budgets[@]}" --budgets best-3
bad '--budgets measures no bits' tune "${budgets[@]}" --budgets 'keep 40% by replay: rot3; window 32: f16' --speed
bad '--budgets measures no bits' tune "${budgets[@]}" --budgets 'keep 40% by replay: rot3; window 32: f16' --kv f16
good tune "${budgets[@]}" --budgets 'keep 40% by replay: rot3; window 32: f16' -o budgets.recipe
says 'keep 40% by replay: rot3'
grep -q '^layers .*: keep .*% by replay: rot3' budgets.recipe || fail "the layers have no shares of their own"
[ -e budgets.recipe.state ] && fail "there is a state that nothing was written to"
good plan --kv budgets.recipe --kv 'keep 40% by replay: rot3; window 32: f16' -c 4k --json
json 'd["plans"][0]["cache_bytes"] <= d["plans"][1]["cache_bytes"]'
good tune "${budgets[@]}" --budgets 'keep 40% by replay: rot3; window 32: f16' --json
json '"keep 40% by replay" in d["kv"] and d["results"] == []'

options=(--thorough -t 1 --text text --chunk 320 --chunks 1 --check-chunks 1 --rounds 1)
good tune "${options[@]}" --like best-3 -o tuned.recipe
says 'tuned'
says 'best-2'
says 'sink 4: f16'
cp out table
grep -q '^# size: ' tuned.recipe || fail "the recipe file lacks its size"
grep -q '^#   tuned .* KL ' tuned.recipe || fail "the recipe file lacks its figures"

# The file is a recipe of the promised size.
good recipes tuned.recipe
good plan --kv tuned.recipe --kv best-3 -c 320 --json
json 'd["plans"][0]["cache_bytes"] <= d["plans"][1]["cache_bytes"]'
bytes=$(python3 -c 'import json; print(json.load(open("out"))["plans"][0]["cache_bytes"])')
grep -q "$bytes bytes at 320 tokens" tuned.recipe || fail "the recipe file has another size than the plan"
good run --kv tuned.recipe -p 'one fish' -n 3

# With the state, nothing is measured again, and the result is the same.
cp tuned.recipe before.recipe
good tune "${options[@]}" --like best-3 -o tuned.recipe
cmp -s out table || fail "the second run prints another table"
cmp -s tuned.recipe before.recipe || fail "the second run writes another recipe"

# A run that is interrupted continues, with the same result.
"$bin" tune "${options[@]}" --like best-3 -o other.recipe >/dev/null 2>err &
pid=$!
sleep 0.3
kill -INT $pid 2>/dev/null
wait $pid
status=$?
[ $status = 130 ] || [ $status = 0 ] || fail "an interrupted run ends with status $status"
good tune "${options[@]}" --like best-3 -o other.recipe
cmp -s <(grep -v '^#' other.recipe) <(grep -v '^#' tuned.recipe) || fail "after an interruption, the recipe differs"

echo damage >>tuned.recipe.state
bad 'is damaged' tune "${options[@]}" --like best-3 -o tuned.recipe
head -c 100 /dev/zero >tuned.recipe.state
bad 'is damaged' tune "${options[@]}" --like best-3 -o tuned.recipe

good tune "${options[@]}" --max-kl 0.5 --json --state other.recipe.state
json 'd["tuning"]["kl_mean"] <= 0.5 and d["results"][-1]["kv"] == d["kv"]'
json 'len(d["sensitivity"]["k"]) == 2 and len(d["sensitivity"]["v"][0]) == 7'
good tune "${options[@]}" --bits 4 -c 4k --kv f16 --state other.recipe.state
says 'f16'

# Two texts share the chunks. What is not tuned on is left for the check.
for i in $(seq 1 400); do echo "all of the $i stones lie in row $((i % 5)), under $((i * 3)) leaves"; done >other_text
bad '2 texts need --chunks 2 or more' tune "${options[@]}" --text other_text --bits 4
bad 'the text text has' tune "${options[@]}" --text other_text --bits 4 --chunks 99
both=(--thorough -t 1 --text text --text other_text --chunk 320 --chunks 2 --check-chunks 2 --rounds 0 --kv f16 -c 4k)
good tune "${both[@]}" --bits 4 -o both.recipe
grep -q '^# tuned on text, other_text, in chunks of 320 tokens:' both.recipe || fail "the recipe file lacks its texts"
grep -q '^# checked on other parts of the same texts:' both.recipe || fail "the recipe file lacks the check"
good tune --thorough -t 1 --text other_text --text text --chunk 320 --chunks 2 --check-chunks 2 --rounds 0 --kv f16 --bits 4 -c 4k --json \
  --state both.recipe.state
json 'd["tuning"]["n_scored"] == d["results"][0]["n_scored"]'

[ $failures = 0 ] || exit 1
echo "$count checks passed"
