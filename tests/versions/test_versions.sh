#!/usr/bin/env bash
# Files that the program of an earlier version wrote (tests/versions/VERSION) are read by today's: sidecars, recipes, a
# conversation, results, and the states of unfinished work. test_saved_versions.c does the same with sessions.
#
# usage: test_versions.sh              read the files of every version
#        test_versions.sh write DIR    write such files with $LOWKEY_BIN, for a new folder
set -u

tests=$(cd "$(dirname "$0")/.." && pwd)
unset LOWKEY_DATA # a path in results
out_dir=${2:+$(cd "$2" && pwd)}
# shellcheck source=../support/program.sh
. "$tests/support/program.sh" || exit 1
build=${LOWKEY_BUILD:?set LOWKEY_BUILD to the build folder}
for name in qwen2-bpe llama-spm; do "$build/tests/write_tiny_models" . "$name" >/dev/null || exit 77; done
for i in $(seq 1 60); do echo "The $i. quick brown fox jumps over the lazy dog; then it sleeps."; done >text

kv='sink 1: f16; body: rot3; window 4: f16'
run() { good run -m qwen2-bpe.gguf -t 1 -p hello -n 4 --greedy --ignore-eos "$@"; }
chat() { "$bin" chat -m qwen2-bpe.gguf -t 1 --greedy -n 4 -k "$kv" --session "$2" <"$1" >out 2>err || fail "chat: $(cat err)"; }
tune() { good tune -m qwen2-bpe.gguf -t 1 --text text --chunk 320 --score 40 -c 4k --like best-3 --state "$1"; }
evaluate() { good eval text --text text -m qwen2-bpe.gguf -t 1 --weights f32 --kv best-3 -c 64 --limit 1 -o "$1"; }
less=(train less -f text -m llama-spm.gguf -t 1 --budget 8 -c 64 --sequences 2 --epochs 9 --queries 4 --hidden 1 --features 1)
lora=(train lora -f text -m qwen2-bpe.gguf -t 1 --kv rot2 -c 64 --sequences 8 --epochs 60 --rank 1 --layers "1,1")
echo one >one
echo two >two

write_files() {
  good compress --method palu --svd plain --rank 12% --truncate -m qwen2-bpe.gguf -t 1 -o basis.gguf
  good "${less[@]}" -o less.gguf
  good "${lora[@]}" -o lora.gguf
  chat one c1
  tune tune.state
  evaluate results.jsonl
  "$bin" recipes --json | python3 -c 'import json, sys
for recipe in json.load(sys.stdin)["presets"]: print(recipe["name"], recipe["text"], sep="=")' >recipes.txt
  # Interrupted after some epochs of the second layer, and after some steps.
  timeout --foreground --signal INT 0.7 "$bin" "${less[@]}" --epochs 900 -o half.gguf >out 2>err
  timeout --foreground --signal INT 0.7 "$bin" "${lora[@]}" -o half.gguf >out 2>err
  cp basis.gguf less.gguf lora.gguf c1.chat tune.state results.jsonl recipes.txt half.gguf.lora half.gguf.layer-0 "$out_dir"
}

read_files() {
  local from=$1 before
  cp "$from"/* .
  run --sidecar basis.gguf --kv palu
  good run -m llama-spm.gguf -t 1 -p hello -n 4 --sidecar less.gguf --kv 'sink 2: f16; body: none; absorb less; window 8: f16'
  run --sidecar lora.gguf --kv rot2
  while IFS='=' read -r name recipe; do
    case $name in
      shadowkv) bad "f16 has no options" recipes "$recipe" ;; # codecs that have left
      oscar-2) bad "found 'clip96'" recipes "$recipe" ;;
      *) good recipes "$recipe" ;;
    esac
  done <recipes.txt
  chat two c1
  [ "$(python3 -c 'import json; print(len(json.load(open("c1.chat"))["messages"]))')" = 4 ] || fail "the conversation did not go on"
  before=$(grep -c '"item"' results.jsonl)
  evaluate results.jsonl
  [ "$(grep -c '"item"' results.jsonl)" = "$before" ] || fail "results were computed again"
  grep -v '^end ' tune.state >measured
  tune tune.state
  [ "$(grep -cFxf measured tune.state)" = "$(wc -l <measured)" ] || fail "tune did not keep what was measured"
  good "${lora[@]}" -o half.gguf
  good "${less[@]}" --epochs 900 -o half.gguf
}

if [ -n "$out_dir" ]; then
  write_files
else
  for file in "$tests"/versions/*/basis.gguf; do read_files "${file%/*}"; done # others have only sessions
fi
echo "test_versions: $count runs, $failures failures"
[ $failures = 0 ]
