#!/usr/bin/env bash
# Tests of --kv auto with a tiny random model: what it stands for before and after `lowkey tune`, --tune and --memory,
# damaged files, and the process that tunes in the background.
set -u

tests=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=../support/program.sh
. "$tests/support/program.sh" || exit 1
write_tiny_model tiny.gguf
export LOWKEY_MODEL=$work/tiny.gguf LOWKEY_CACHE=$work/cache
stored() { ls "$work"/cache/recipes/*-"$1" 2>/dev/null; }

# Nothing is tuned yet: the presets. No file is made by looking.
for n in 4 3 2; do
  good plan --kv auto-$n --kv best-$n -c 4k --json
  json 'd["plans"][0]["cache_bytes"] == d["plans"][1]["cache_bytes"]'
done
good plan --kv auto --kv best-4 -c 4k --json
json 'd["plans"][0]["cache_bytes"] == d["plans"][1]["cache_bytes"]'
[ -e cache ] && fail "a folder was made for nothing"
bad 'auto-5' recipes auto-5
bad 'depends on the model' recipes auto-3
bad '--tune needs --kv auto' run -p x -n 1 --kv best-4 --tune
bad 'give -c N' run -p x -n 1 --memory 1
bad '--while is for tuning without a size' tune --while 1 --bits 3
bad 'at most one --text' tune --text short --text short
for ignored in '-c 4k' '--speed' '--chunk 512' '--kv best-3' '--check-chunks 2' '--rounds 0' '--head-groups 2' '-o out'; do
  # shellcheck disable=SC2086
  bad 'no text: give --text FILE' tune $ignored
done
head -c 200 "$tests/lowkey/test_auto_recipe.sh" >short
bad 'tuning needs 256 or more' tune --text short

# The process of --while has ended: nothing is done.
true &
pid=$!
wait $pid
good tune --while $pid
[ -e cache ] && fail "recipes were tuned for a process that has ended"

good tune -t 1
for n in 4 3 2; do
  says auto-$n
  [ -n "$(stored auto-$n)" ] || fail "auto-$n is not stored"
done
cp out table
good recipes "$(stored auto-3)"
good plan --kv auto --kv best-4 --kv auto-3 --kv best-3 --kv auto-2 --kv best-2 -c 8k --json
json 'all(d["plans"][i]["cache_bytes"] <= d["plans"][i + 1]["cache_bytes"] for i in (0, 2, 4))'
printf 'one fish two fish %.0s' {1..120} >longer
for recipe in auto-3 "$(stored auto-3)"; do
  good eval text --text longer -c 256 --limit 1 --kv "$recipe" -o results.jsonl
  says "$recipe"
  grep -vc '"type":"run"' results.jsonl >>n_result
done
[ "$(sort -u n_result | wc -l)" = 1 ] || fail "eval: auto-3 is another recipe than the stored one"
good tune -t 1
cmp -s out table || fail "the second run stores something else"
good tune -t 1 --json
json '[r["name"] for r in d["stored"]] == ["auto-4", "auto-3", "auto-2"]'

# A text shorter than a chunk: both chunks have all of it.
good run -f longer -n 1 --kv f16 --json
n=$(python3 -c 'import json; print(2 * json.load(open("out"))["prompt_tokens"])')
good tune -t 1 --text longer
grep -q " on $n tokens\$" "$(stored auto-4)" || fail "tuned on other than $n tokens: $(head -1 "$(stored auto-4)")"
good tune -t 1

# They are used by default, and --kv best-4 is always best-4.
good run -p 'one fish' -n 2 --json
cp out default.json
good run -p 'one fish' -n 2 --kv "$(stored auto-4)" --json
python3 -c 'import json; a, b = (json.load(open(f)) for f in ("default.json", "out")); assert a["levels"] == b["levels"]' ||
  fail "run does not use what is stored"
good run -p 'one fish' -n 2 --kv best-4 --json
json 'd["recipe"] == "best-4" if "recipe" in d else True'

# A size in memory: no recipe is larger.
good run -p 'one fish' -n 2 --memory 8 -c 16k --json
bad 'too few' run -p 'one fish' -n 2 --memory 1 -c 16m

# Damage is named, with the file. The state of another version is made again.
state=$(ls cache/recipes/*.state)
echo damage >"$state"
good tune -t 1
cmp -s out table || fail "with a damaged state, something else is stored"
file=$(stored auto-4)
echo 'body: rot99' >"$file"
bad "delete it to tune again" run -p 'one fish' -n 2
rm "$file"
good run -p 'one fish' -n 2 --tune
[ -n "$(stored auto-4)" ] || fail "--tune stored nothing"

# A model with sharp attention loses too much with either recipe: the default is exact, smaller sizes are not.
python3 - "$tests/serve" <<'EOF'
import sys
sys.path.insert(0, sys.argv[1])
import tiny_model
plain, sharp = tiny_model.tensors, {"attn_q": 8, "attn_output": 20}
tiny_model.tensors = lambda words: [(name, shape, deviation * sharp.get(name.split(".")[-2], 1)) for name, shape, deviation in plain(words)]
tiny_model.write_model("sensitive.gguf")
EOF
good tune -t 1 -m sensitive.gguf --json
json '[r["kv"] == "f16" for r in d["stored"]] == [True, False, False]'
"$bin" run -m sensitive.gguf -p 'one fish' -n 2 >out 2>err || fail "run: $(head -c 400 err)"
grep -q 'the cache is f16' err || fail "run does not say that its cache is f16"
grep -q 'too much for a default' "$(ls -t cache/recipes/*-auto-4 | head -1)" || fail "the recipe does not say why it is f16"

# So is gpt-oss's, until it was tuned.
if "${LOWKEY_BUILD:-none}/tests/write_tiny_models" . >/dev/null 2>&1; then
  good plan -m gpt-oss.gguf --kv auto --kv f16 --kv auto-3 --kv best-3 -c 4k --json
  json 'all(d["plans"][i]["cache_bytes"] == d["plans"][i + 1]["cache_bytes"] for i in (0, 2))'
  rm -- *.gguf
  write_tiny_model tiny.gguf
fi

# A server starts the process only if nothing is stored, and the process ends with it.
serve() {
  rm -f serve.out
  LOWKEY_TUNE=1 "$bin" serve --port 0 >serve.out 2>serve.err &
  server=$!
  for _ in $(seq 1 200); do grep -qs http serve.out && break; sleep 0.05; done
  child=$(pgrep -f "tune --while $server")
}
serve
[ -z "$child" ] || fail "a process tunes what is tuned"
kill $server
wait $server
rm -r cache
serve
[ -n "$child" ] || fail "no process tunes: $(head -c 400 serve.err)"
grep -q 'the next start will use it' serve.err || fail "the server does not say that it tunes"
kill $server
wait $server
for _ in $(seq 1 300); do kill -0 "$child" 2>/dev/null || break; sleep 0.1; done
kill -0 "$child" 2>/dev/null && fail "the process goes on without its server"

[ $failures = 0 ] || exit 1
echo "$count checks passed"
