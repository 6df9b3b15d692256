#!/usr/bin/env bash
# What the program says to someone who knows other programs, mistypes, or has a narrow terminal.
#
# LOWKEY_BIN, LOWKEY_BUILD: the program, and its build folder, which has tests/write_tiny_models
set -u

support=$(cd "$(dirname "$0")/../support" && pwd)
# shellcheck source=../support/program.sh
. "$support/program.sh" || exit 1
unset LOWKEY_MODEL COLUMNS
export NO_COLOR=1

# ---- options of other programs ------------------------------------------------------------------

bad "unknown option '-hf': download the GGUF file, then give it with -m FILE" run -hf foo/bar -p hi
bad "unknown option '-ngl': leave it out; --device NAME and --layers N" run -ngl 99 -p hi
bad "unknown option '--n-gpu-layers': leave it out" run --n-gpu-layers=99
bad "unknown option '-ctk': --kv RECIPE sets K and V together; 'q8_0' is not a recipe: selective" run -ctk q8_0 -p hi
bad "'q4_0' is not a recipe: best-4" run --cache-type-v=q4_0 -p hi
bad "unknown option '--api-key': put the key into a file" serve --api-key secret
bad "unknown option '--api-key': put the key into a file" serve --api-key=secret
grep -q secret err && fail "the key is printed: $(cat err)"
bad "unknown option '--max-new-tokens': use -n N" run --max-new-tokens 3 -p hi
bad "--kv RECIPE sets K and V together: --kv f16" serve -ctv f16
bad "unknown option '-fa': " run -fa 1 -p hi
bad "unknown option '-md': lowkey has no draft models; use --draft lookup" run -md small.gguf -p hi
bad "unknown option '--spec-type': use --draft lookup" serve --spec-type ngram-simple
bad "unknown option '--draft-max': lowkey drafts as many tokens as pay" run --draft-max 8 -p hi
bad "unknown option '-cnv': use 'lowkey chat'" run -cnv
bad "unknown option '-mli': use 'lowkey chat'" run -mli
bad "unknown option '-sys': use --system TEXT" run -sys x
bad "unknown option '-np': use 'lowkey serve --parallel N'" serve -np 4
bad "unknown option '--n-predict': use -n N" run --n-predict 4
bad "unknown option '--port': only 'lowkey serve'" run --port 80
bad "unknown option '-b': lowkey chooses the batch itself" run -b 512

# ---- mistakes -----------------------------------------------------------------------------------

bad "unknown option '--max_memory': did you mean --max-memory?" run --max_memory 4
bad "unknown option '--kvs': did you mean --kv?" run --kvs best-3
bad "unknown option '-model': did you mean --model?" run -model x
bad "unknown option '-temp': did you mean --temp?" run -temp 0.5
bad "unknown option '-hepl': did you mean --help?" run -hepl
bad "option '--s' is ambiguous: --system, " run --s
bad "'hi' is not an option: a prompt is given with -p" run hi
bad "'llama3.2' is not an option: messages are typed, or piped in; a model is given with -m" chat llama3.2
bad "'llama3.2' is not an option: a model is given with -m" serve llama3.2
bad "unknown option '-p': messages are typed, or piped in" chat -p hi
bad "unknown command 'download': did you mean 'lowkey pull'?" download llama3.2
bad "unknown command 'ls': did you mean 'lowkey models'?" ls
bad "'lowkey help' explains one command; 'chat' is another operand" help run chat
bad "'my.recipe' is not a recipe: neither a preset, such as best-4, nor a codec, such as rot4, and there is no file of this name" run --kv my.recipe -p x
bad "--max-memory and --load-time are for several models" serve --max-memory 100
bad "--max-memory and --load-time are for several models" serve --load-time 0
bad "'best-3,best-4' names several recipes: give --kv once for each" serve --kv best-3,best-4
bad "--ctx: '32kb' is not a number from 0 to 16777216; 32k is 32768" run -c 32kb -p x
bad "--max-memory: '8G' is not a number of MiB from 1 to 16777216; 8192 is 8 GiB" run --max-memory 8G -p x
bad "'x.gguf' is not an option: a model is given with -m" info x.gguf
bad "'hi' is not an option: a prompt is given with -p" run -- hi
bad "unknown command 'serv': did you mean 'lowkey serve'?" serv
bad "unknown command 'server': did you mean 'lowkey serve'?" help server
bad "unknown command 'ppl': did you mean 'lowkey perplexity'?" ppl
bad "'best3' is not a recipe: did you mean best-3?; see 'lowkey recipes'" run --kv best3 -p x
bad "'best-5' is not a recipe: did you mean best-4?" plan --kv best-5
bad "found 'widow', did you mean 'window'?" recipes "body: rot3; widow 64: f16"
good recipes best-3 --json "body: rot2; window 32: f16" -- best-4 # options among operands
json '[r["text"] for r in d["recipes"]] == ["best-3", "body: rot2; window 32: f16", "best-4"]'
printf 'no model' >other
bad 'other: not a GGUF file: it does not start with "GGUF"' info -m other
LOWKEY_MODEL=$work/other bad "$work/other: not a GGUF file" plan

# ---- tables on a terminal -----------------------------------------------------------------------

# on COLUMNS ARGUMENT...: the output on a terminal; no line may be longer.
on() {
  local columns=$1
  count=$((count + 1))
  python3 "$support/terminal.py" "$columns" "$bin" "${@:2}" >out || fail "on $columns columns: ${*:2}"
  awk -v max="$columns" 'length > max' out | grep . && fail "lowkey ${*:2}: lines of more than $columns columns"
}

"${LOWKEY_BUILD:?}/tests/write_tiny_models" . >/dev/null || { echo "skipped: no program that writes tiny models"; exit 77; }
export LOWKEY_MODEL=llama-spm.gguf
good plan -c 100,100k --kv f16 --kv best-3
says 'scratch'
on 100 plan -c 100,100k --kv f16 --kv best-3
says 'scratch'
on 60 plan -c 100,100k --kv f16 --kv "sink 4: f16; body: rot3; window 64: f16"
says 'sink 4: f16; body: rot'
says 'peak'
! grep -q scratch out || fail "a narrow table has all columns"
on 30 plan -c 100,100k --kv f16 --kv best-3
grep -qE '^  scratch +[0-9]' out || fail "no records on a very narrow terminal: $(cat out)"
COLUMNS=30 on 60 plan -c 100 --kv best-3
grep -qE '^  scratch +[0-9]' out || fail "COLUMNS is ignored: $(cat out)"
COLUMNS=30 good plan -c 100 --kv best-3
head -n 1 out | grep -q 'weights  *scratch  *peak$' || fail "a file has a terminal's width: $(cat out)"
on 60 run -t 1 -p a -n 1 --greedy --stats
grep -q 'nothing to pack yet' out || fail "a short text: $(cat out)"
on 50 info
on 80 help
on 80 recipes

# ---- what was written ---------------------------------------------------------------------------

for i in $(seq 1 200); do echo "The boat number $i sailed."; done >text
train=(train less -t 1 -f text --budget 8 -c 32 --sequences 8 --hidden 8 --epochs 1 -o less.gguf)
good "${train[@]}" --layers 0,0
says 'less.gguf is not written yet. When the others are trained too, the same command without --layers writes it.'
[ ! -e less.gguf ] || fail "one layer makes a sidecar"
good "${train[@]}"
says 'wrote less.gguf'
[ -s less.gguf ] || fail "no sidecar"

# ---- longer than the model was trained for ------------------------------------------------------

# warns ARGUMENT...: succeeds, with the warning as the only line on stderr.
warns() {
  count=$((count + 1))
  timeout 60 "$bin" "$@" >out 2>err </dev/null || fail "lowkey $*: $(cat err)"
  [ "$(grep -c '' err)" = 1 ] || fail "lowkey $*: stderr is: $(cat err)"
  grep -q '^lowkey: warning: .* tokens of context, but the model was trained for ' err || fail "lowkey $*: $(cat err)"
}
warns run -t 1 -p a -n 1 -c 100k
warns bench -t 1 --depth 4k -p 0 -n 1 --repeat 1 --kv f16 -f text
warns perplexity -t 1 -f text -c 1500 --chunks 1
warns eval text -t 1 --text text -c 1500 --limit 1 --kv best-4
good run -t 1 -p a -n -1 --ignore-eos -c 40 --json
json 'd["stop"] == "context full" and d["answer_tokens"] > 30'
bad "unknown option '--context-shift': a chat leaves out its oldest turns when the context is full" run --context-shift -p a
bad "unknown option '--keep': a chat leaves out its oldest turns" serve --keep 200
bad "unknown option '--no-context-shift': nothing shifts here" serve --no-context-shift

[ $failures = 0 ] || exit 1
echo "$count checks passed"
