#!/usr/bin/env bash
# Tests of the program: bad input gives status 1 and one line, good input the output that scripts rely on.
#
# LOWKEY_BIN: the program. LOWKEY_MODEL: a model; by default the one that scripts/fetch-model downloads.
# Without a model the tests that need one are skipped (status 77).
set -u

experiments=$(cd "$(dirname "$0")/../../experiments" && pwd)
# shellcheck source=../support/program.sh
. "$(dirname "$0")/../support/program.sh" || exit 1
default=${LOWKEY_MODELS:-${LOWKEY_CACHE:-$HOME/.cache/lowkey}/models}/SmolLM2-135M-Instruct.Q4_1.gguf
model=${LOWKEY_MODEL:-$default}
unset LOWKEY_MODEL

plan_keys='["kv","n_tok","cache_bytes","f16_bytes","ratio","bits_per_value","weight_bytes","scratch_bytes","peak_bytes","sidecar_bytes","derived_bytes","total_bytes","bits_with_sidecar","stage","device_bytes","device_cache_bytes","device_scratch_bytes","device_shared_bytes"]'
cache_keys='["n_tok","code_bytes","scale_bytes","exact_bytes","padding_bytes","state_bytes","cache_bytes","f16_bytes","scratch_bytes","device_bytes","resident_bytes","bits_per_value","bytes_per_token","tiles","tiles_read"]'
run_keys='["model","kv","prompt_tokens","answer_tokens","text","stop","prefill_tokens_per_second","decode_tokens_per_second","cache","levels"]'
result_keys='["kv","ppl","kl_mean","kl_median","kl_p99","kl_p999","top1","bytes_per_token","bits_per_value"]'
bench_keys='["kv","depth","prefill_tps","decode_tps","cache_bytes","bits_per_value","prefill_tps_best","decode_tps_best","n_tok","n_repeated","bits_with_sidecar","cpu_share"]'
info_keys='["version","model","arch","identity","tuned","n_param","file_bytes","weight_bytes","n_layer","n_cached","n_embd","n_head","n_head_kv","d_head","n_vocab","n_ctx_train","n_swa","kernels","n_threads","n_cores","n_allowed","cpu_quota","lacks","devices","weight_devices","device","device_layers","prompt_lack","device_recurrent","recurrence_lack","device_weight_bytes"]'

# ---- help, man page and completion --------------------------------------------------------------

good
says 'usage: lowkey COMMAND'
good --version
says 'lowkey '
says 'commit '
says ', built by '
LOWKEY_CPU=some good --version
says 'for CPUs of level some'
"$experiments/../scripts/man-page" "$bin" >man || fail "scripts/man-page fails"
good help --completion bash
cp out completion
bash -n completion || fail "the completion is not a valid bash script"
bad "expected 'bash'" help --completion
bad "expected 'bash'" help --completion csh
sed 's/\\-/-/g' man >man.options
commands='run chat serve plan perplexity bench eval train recipes inspect compress export tune info'
for command in $commands; do
  good help "$command"
  says "usage: lowkey $command"
  says 'Examples'
  cp out help
  good "$command" --help
  cmp -s out help || fail "'help $command' and '$command --help' differ"
  awk 'length > 100' out | grep . && fail "$command --help has lines of more than 100 characters"
  grep -qx "\.SS $command" man.options || fail "the man page does not describe $command"
  # shellcheck disable=SC2013
  for option in $(grep -oE '^ *(-[a-zA-Z], )? *--[a-z][a-z-]*' help | grep -oE -e '--[a-z-]*'); do
    grep -qxE -e "\\\\fB(-., )?$option( [^ ]*)?\\\\fR" man.options || fail "the man page does not describe $option of $command"
  done
done
if command -v groff >/dev/null; then
  groff -man -Tutf8 -ww man >man.txt 2>warnings || fail "groff fails on the man page"
  [ ! -s warnings ] || fail "groff warns: $(head -n 3 warnings)"
fi

# complete_words WORD...: sets `offered` to the completions of the last word.
complete_words() {
  offered=$(bash -c '. ./completion; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lowkey; printf "%s" "${COMPREPLY[*]}"' _ "$@")
}
# offers EXPECTED WORD...: EXPECTED is among the completions of the last word.
offers() {
  complete_words "${@:2}"
  [[ " $offered " == *" $1 "* ]] || fail "the completion of '${*:2}' lacks $1: $offered"
}
touch m.gguf m.txt
mkdir -p folder
for command in $commands help; do offers "$command" lowkey ''; done
for command in $commands; do
  "$bin" "$command" --help >help
  # shellcheck disable=SC2013
  for option in $(grep -oE '^ *(-[a-zA-Z], )? *--[a-z][a-z-]*' help | grep -oE -e '-[a-zA-Z]\b|--[a-z-]*'); do
    offers "$option" lowkey "$command" "$option"
  done
done
offers best-3 lowkey run --kv best
offers best-1.9 lowkey run --kv best-1
offers best-3 lowkey run --kv = best
offers best-3 lowkey recipes be
offers best-3 lowkey eval --kv be
offers llama.cpp:q8_0 lowkey eval --kv llama
offers q8_0 lowkey eval --kv llama.cpp : q8 # readline ends words at ':'
offers plain lowkey eval --kv llama.cpp :
offers m.txt lowkey run --kv m
offers m.gguf lowkey run -m m
complete_words lowkey run -m m
[ "$offered" = m.gguf ] || fail "the completion of -m offers: $offered"
offers folder lowkey serve --session-dir f
offers shipped lowkey bench --weights s
offers needle lowkey eval ne
offers less lowkey train l
offers lora lowkey train l
offers chat lowkey help c
complete_words lowkey run -n ''
[ -z "$offered" ] || fail "the completion of -n offers: $offered"
rm -r m.gguf m.txt folder

# ---- bad input that needs no model ----------------------------------------------------------------

printf 'GGUF, or so it says' >not.gguf
: >empty
printf 'caf\xe9' >latin1
printf 'a\0b' >zero
printf 'body: rot3; window many: f16\n' >bad.recipe
head -c 20000 /dev/zero | tr '\0' ' ' >large.recipe
mkdir directory

bad "unknown command 'walk'" walk
bad "unknown command 'walk'" help walk
bad "unknown option '--walk'" --walk
bad "unknown option '--walk'; see 'lowkey run --help'" run --walk
bad "unknown option '-Q'" run -Q
bad "--prompt needs a value" run -p
bad "--json takes no value" run --json=3
bad "'stray' is not an option" run stray
bad "--tokens: '0' is not a number from 1" run -p x -n 0
bad "--tokens: '-5' is not" run -p x -n -5
bad "--tokens: '3x' is not" run -p x -n 3x
bad "--tokens: '99999999999999999999' is not" run -p x -n 99999999999999999999
bad "--ctx: '9999999999999k' is not" run -p x -c 9999999999999k
bad "--ctx: '17m' is not" run -p x -c 17m
bad "--ctx: '1mk' is not" run -p x -c 1mk
bad "--threads: '0' is not" run -p x -t 0
bad "--temp: 'nan' is not" run -p x --temp nan
bad "--temp: '1e999' is not" run -p x --temp 1e999
bad "--top-p: '1.5' is not a number from 0 to 1" run -p x --top-p 1.5
bad "--repeat-last-n: '1048577' is not" run -p x --repeat-last-n 1048577
bad "--seed: '-1' is not" run -p x --seed -1
bad "--max-memory: '0' is not" run -p x --max-memory 0
bad "--weights: 'int3' is neither" run -m not.gguf -p x --weights int3
bad "this CPU has no kernels named 'abacus'; it has" run -m not.gguf -p x --kernels abacus
bad "the prompt is empty" run -p ""
bad "the prompt is empty" run
bad "the prompt is empty" run -f empty
bad "byte 3 is 0xe9" run -f latin1
bad "byte 3 is 0xe9" run -p "$(cat latin1)"
bad "byte 1 is zero" run -f zero
input=latin1 bad "standard input: not valid UTF-8" run
bad "No such file" run -f missing
bad "is a directory" run -f directory
bad "cannot be used together" run -p x -f empty
bad "--system needs --chat" run -p x --system y
bad "'run' takes one --kv" run -p x --kv f16 --kv best-3
bad "'chat' takes one --kv" chat --kv f16 --kv best-3
bad "column 9: expected 'k=', 'v=' or a codec" run -p x --kv "sink 4: x=rot3"
bad "did you mean selective?" run -p x --kv selectve
bad "neither a recipe nor a file" run -p x --kv ./missing.recipe
bad "bad.recipe: recipe, line 1, column 20" run -p x --kv bad.recipe
bad "larger than 16.0 KiB" run -p x --kv large.recipe
bad "is a directory" run -p x --kv directory
bad "recipe: empty" run -p x --kv ""
bad "is not a recipe: neither a preset" recipes best-3 nonsense
bad "No such file" run -p x -m missing.gguf
bad "is a directory" run -p x -m directory
bad "" run -p x -m not.gguf
bad "" run -p x -m empty
bad "" info -m not.gguf
LOWKEY_CACHE=$work bad "no model: give one with -m FILE.gguf" info
LOWKEY_MODEL=missing.gguf bad "missing.gguf" info
bad "no text: give -f FILE" perplexity
bad "no method: give --method palu, tale, kvheads or oscar" compress
bad "no output: give -o FILE" compress --method palu
bad "no text: give --text FILE, or --text self" compress --method palu -o x.lk.gguf
bad "--method: 'svd' is not palu, tale, kvheads or oscar" compress --method svd -o x.lk.gguf
bad "--svd: 'qr' is not whitened, plain, output or mean-pool" compress --method palu --svd qr -o x.lk.gguf
bad "--rank: '150%' is not a share such as 50%" compress --method palu --rank 150% --text empty -o x.lk.gguf
bad "cannot write nowhere/x.lk.gguf: " compress --method palu --text empty -o nowhere/x.lk.gguf
bad "--group: 'none' is neither a number of heads nor 'all'" compress --method palu --group none --text empty -o x.lk.gguf
bad "cut off or damaged" compress --method palu --text empty -o x.lk.gguf -m not.gguf
bad "is empty" perplexity -f empty -m not.gguf
bad "--ctx: '1' is not" perplexity -f empty -c 1
bad "--ctx: '1' is not a number from 2" inspect -c 1
bad "neither a preset" inspect --kv nonsense
bad "'inspect' takes one --kv" inspect --kv f16 --kv best-3
bad "'stray' is not an option" inspect stray
bad "No such file" inspect -m missing.gguf
bad "expected 'less' or 'lora'" train -f prompt -o x --budget 8
bad "expected 'less' or 'lora'" train more
bad "--rank is an option of 'lowkey train lora'" train less -f prompt -o x --budget 8 --rank 4
bad "--budget is an option of 'lowkey train less'" train lora -f prompt -o x --budget 8
bad "no text: give -f FILE" train lora --kv rot4
bad "give one --kv RECIPE" train lora -f prompt -o x
bad "--rank: '0' is not a number from 1 to 4096" train lora --rank 0
bad "no text: give -f FILE" train less
bad "no sidecar to write" train less -f prompt
bad "no budget" train less -f prompt -o x
bad "cannot write directory: " train less -f prompt -o directory --budget 8
bad "--layers: give the first and the last" train less -f prompt -o x --layers 3
bad "--share: '3' is not a number from 0 to 2" train less --share 3
bad "--ctx: 'x' is not" plan -c 4k,x
bad "cannot be used together" plan --fit 100 -c 4k
bad "--depth: 'x' is not" bench --depth 0,x
bad "--depth: '' is not" bench --depth 0,
bad "--depth: '-1' is not" bench --depth -1
bad "--depth: '17m' is not" bench --depth 17m
bad "--depth: '16777217' is not" bench --depth 16777217
bad "--depth: 1024 is given twice" bench --depth 1k,0,1024
bad "--repeat: '0' is not" bench --repeat 0
bad "are both 0" bench -p 0 -n 0
bad "neither a preset" bench --kv nonsense
bad "no task" eval
bad "unknown task 'dance'" eval dance
bad "unknown llama.cpp cache type" eval text --kv llama.cpp:q9 --text large.recipe -m not.gguf
bad "neither a preset" eval text --kv nonsense
bad "--ctx: '3' is not" eval text -c 3
bad "--limit: '0' is not" eval text --limit 0
bad "No such file" eval text --text missing
bad "byte 3 is 0xe9" eval text --text latin1
bad "No such file" eval text --text large.recipe -m missing.gguf
if [ -w /dev/full ]; then
  timeout 60 "$bin" recipes >/dev/full 2>err && fail "a full disk is not noticed"
  grep -q '^lowkey: cannot write' err || fail "a full disk: $(cat err)"
fi

# ---- recipes ------------------------------------------------------------------------------------

good recipes
says 'best-3'
good recipes --json
json 'all(list(p) == ["name","text","note","sidecar","levels"] for p in d["presets"])'
json 'all(list(l) == ["name","k","v"] for p in d["presets"] for l in p["levels"])'
printf '# mine\nsink 4: f16\nbody: rot3\nwindow 64: f16\n' >my.recipe
good recipes --json my.recipe best-3 "body: rot2; layers first 2: rot4"
json '[r["text"] for r in d["recipes"]] == ["sink 4: f16; body: rot3; window 64: f16", "best-3", "body: rot2; layers first 2: rot4"]'
json '[l["name"] for l in d["recipes"][2]["levels"]] == ["body", "layers 0-1"]'

# ---- with a model -------------------------------------------------------------------------------

if [ ! -r "$model" ]; then
  [ $failures = 0 ] || exit 1
  echo "skipped: $model is missing, scripts/fetch-model downloads it ($count checks without a model passed)"
  exit 77
fi
export LOWKEY_MODEL=$model

# Some commands download the default model with the script next to the program. The script's argument is its name.
mkdir -p build scripts cache/models small/models
cp "$bin" build/lowkey
cat >scripts/fetch-model <<'END'
#!/bin/sh
echo "fetching $1"
case $1 in
  qwen2.5-coder-0.5b) file=Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf ;;
  smollm2) file=SmolLM2-135M-Instruct.Q4_1.gguf ;;
esac
ln -s "$LOWKEY_MODEL_FILE" "$LOWKEY_CACHE/models/$file"
END
chmod +x scripts/fetch-model
model_file=$(realpath "$model")
# default_lowkey CACHE COMMAND...: run a command without a model, with this cache folder.
default_lowkey() {
  LOWKEY_MODEL='' LOWKEY_MODEL_FILE=$model_file LOWKEY_CACHE=$work/$1 timeout 300 "${@:2}" >out 2>err
}
# typed WORDS COMMAND...: on a terminal, with these words typed.
typed() {
  echo "$1" | default_lowkey cache python3 -c 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)' "${@:2}"
}
default_lowkey cache build/lowkey chat </dev/null && fail "chat downloads without asking"
grep -qE "^lowkey: no model: give one with -m FILE.gguf, or download .* MiB\\) with 'lowkey pull [a-z0-9.-]+'$" err ||
  fail "chat does not say how to download the model: $(cat err)"
grep -q '^fetching' err && fail "chat downloads without asking"
typed n build/lowkey run -p Hello -n 1 && fail "run goes on without a model: $(cat out)"
grep -q fetching out && fail "run downloads although the answer is no"
typed y build/lowkey run -p Hello -n 1 || fail "run in a terminal does not download the model: $(cat out err)"
grep -qE 'fetching (qwen2.5-coder-0.5b|smollm2)' out || fail "the output of fetch-model is not shown: $(cat out)"
echo /stats | default_lowkey cache build/lowkey chat || fail "chat does not use the downloaded model: $(cat err)"
grep -qE '^recipe: (best-4$|[^ ]*-4, tuned for this model$)' out || fail "the default recipe: $(cat out)"
default_lowkey cache build/lowkey info || fail "the downloaded model is not used: $(cat err)"
ln -s "$model_file" small/models/SmolLM2-135M-Instruct.Q4_1.gguf
default_lowkey small build/lowkey chat </dev/null || fail "chat does not use the model that is there: $(cat err)"
default_lowkey small build/lowkey info --json || fail "info without a model: $(cat err)"
json 'd["model"] == "SmolLM2-135M-Instruct"'
rm cache/models/*
printf '#!/bin/sh\nexit 1\n' >scripts/fetch-model
typed y build/lowkey chat && fail "chat does not notice a failed download"
grep -q 'lowkey: cannot download the model' out || fail "a failed download: $(cat out)"
for command in plan 'run -p x'; do
  # shellcheck disable=SC2086
  default_lowkey nowhere build/lowkey $command </dev/null && fail "$command runs without a model"
  grep -q '^lowkey: no model: give one with -m FILE.gguf' err || fail "$command without a model: $(cat err)"
done

good info
says 'parameters'
good info --json
json "list(d) == $info_keys"
good info --kernels reference --json
json "d['kernels'] == 'reference'"
json 'd["n_layer"] > 0 and d["n_threads"] > 0'
json 'd["device"] is None and d["device_layers"] == 0 and d["device_weight_bytes"] == 0'
bad "there is no device 'cuda77'; devices: cpu" info --device cuda77
bad "'rpc:here' is not rpc:HOST:PORT" run -p x --device rpc:here
bad "7 layers cannot be on a device: none is named" plan --layers 7

good plan -c 1k,2048 --kv f16 --kv best-3
says '2,048'
good plan -c 1k,2048 --kv f16 --kv best-3 --json
json "all(list(p) == $plan_keys for p in d['plans'])"
json '[(p["kv"], p["n_tok"]) for p in d["plans"]] == [("f16", 1024), ("f16", 2048), ("best-3", 1024), ("best-3", 2048)]'
json 'd["plans"][3]["cache_bytes"] < d["plans"][1]["cache_bytes"]'
good plan -c 1m --ranks 4 --json
json '[p["n_tok"] for p in d["plans"]] == [1048576] * len(d["plans"])'
good plan --json
json 'len(d["plans"]) >= 5'
good plan --fit 2000 --kv best-3 --json
json 'd["plans"][0]["n_tok"] > 0 and d["plans"][0]["peak_bytes"] <= 2000 << 20'

printf 'word %.0s' {1..5000} >many
bad "of cache and scratch, but --max-memory allows 30.0 MiB; " run -f many -n 1 --max-memory 30
bad "4 tokens with best-4 need" run --kv best-4 -p x -n 3 --max-memory 1
# The memory that the error names is enough; it grows with the number of threads.
enough=$(sed -n 's/.*but --max-memory allows 1.00 MiB; use --max-memory \([0-9]*\)$/\1/p' err)
[[ -n $enough ]] || fail "the error names no way: $(cat err)"
good run -p x -n 3 --max-memory "$enough"
bad "; use --kv best-3, or use --max-memory" run -f many -n 1 --kv f16 --max-memory 60
input=many bad "but --max-memory allows 1.00 MiB" chat --max-memory 1
good run -p "The capital of France is" -n 6 --greedy
cp out first
good run -p "The capital of France is" -n 6 --greedy
cmp -s out first || fail "greedy answers differ"
printf 'The capital of France is\n' >prompt
input=prompt good run -n 6 --greedy
cmp -s out first || fail "a piped prompt gives another answer"
good run -f prompt -n 6 --greedy
cmp -s out first || fail "a prompt from a file gives another answer"
good run -p "The capital of France is" -n 6 --greedy --kv best-3 --json
json "list(d) == $run_keys"
json "list(d['cache']) == $cache_keys"
json 'd["kv"] == "best-3" and 0 < d["answer_tokens"] <= 6 and d["stop"] in ("length", "end")'
json 'd["cache"]["cache_bytes"] == sum(d["cache"][k] for k in ("code_bytes", "scale_bytes", "exact_bytes", "padding_bytes", "state_bytes"))'
json '[l["name"] for l in d["levels"]] == ["sink 4", "body", "recent 20%", "window 64", "newest"]'
good run --chat --system "Be brief." -p "Name a river." -n 8 --seed 7 --temp 1.2 --top-k 20 --json --kv my.recipe
json 'd["kv"] == "sink 4: f16; body: rot3; window 64: f16"'
printf 'root ::= "yes" | "no"\n' >yes.gbnf
good run -p "Is water wet? Answer:" -n 8 --grammar-file yes.gbnf --json
json 'd["text"] in ("yes", "no")'
# Drafts change no greedy answer, and are counted. (With quantized weights, products of several tokens round differently, which
# decides between tokens that are equally probable.)
again="one two three four five one two three four five one two three"
good run -p "$again" -n 24 --greedy --kv f16 --weights f32
cp out first
good run -p "$again" -n 24 --greedy --kv f16 --weights f32 --draft lookup
cmp -s out first || fail "with drafts the greedy answer differs: $(cat out) $(cat first)"
good run -p "$again" -n 24 --greedy --draft lookup --json
json 'd["drafts"]["passes"] + d["drafts"]["accepted"] == d["answer_tokens"] - 1 and d["drafts"]["drafted"] >= d["drafts"]["accepted"]'
bad "--draft: expected lookup or none, not 'small.gguf'" run -p x --draft small.gguf
bad "--draft: expected lookup or none, not 'nothing'" serve --draft nothing
timeout 300 "$bin" run -p "$again" -n 4 --kv h2o --draft lookup >out 2>err || fail "run --draft with h2o: status $?"
grep -q 'no drafts: the recipe evicts by attention scores' err || fail "drafts with h2o: $(cat err)"
timeout 300 "$bin" run -p Hello -n 4 --stats >out 2>err || fail "run --stats: status $?"
for row in prefill decode cache 'as f16' scratch; do
  grep -q "$row" err || fail "run --stats has no row '$row': $(cat err)"
done

# A saved session: an answer in two halves is the same as in one go.
for kv in 'sink 2: f16; keep 4 by h2o: f16; window 4: f16' best-3; do
  rm -f kept
  good run -p "The capital of France is" -n 12 --greedy --kv "$kv"
  tr -d '\n' <out >whole
  good run -p "The capital of France is" -n 6 --greedy --kv "$kv" --session kept
  tr -d '\n' <out >halves
  good run --session kept -n 6 --greedy
  tr -d '\n' <out >>halves
  cmp -s whole halves || fail "a saved session of '$kv' answers '$(cat halves)', in one go '$(cat whole)'"
done
good run --session kept --chat -p "And of Italy?" -n 4 --json
json 'd["kv"] == "best-3" and d["cache"]["n_tok"] > 16'
bad 'another recipe, "best-3", not with "f16"' run --session kept --kv f16 -p x
head -c 3000 kept >cut
bad "its size has changed" run --session cut -p x
bad "too short for a saved session" run --session my.recipe -p x
bad "not a regular file" run --session . -p x
printf 'root ::= (\n' >bad.gbnf
bad "bad.gbnf: " run -p x --grammar-file bad.gbnf
bad "is empty" run -p x --grammar-file empty
bad "more than the context of 3" run -p "a b c d e f g h i j" -c 3
bad "fewer than a chunk" perplexity -f prompt

printf 'Name a river.\n/kv\n/stats\n' >talk
input=talk good chat -n 8 --greedy --kv best-3
says 'body'
says 'bits per value'
input=talk good chat -n 8 --greedy --kv best-3 --json
[ "$(wc -l <out)" = 3 ] || fail "chat --json: $(wc -l <out) lines, expected 3"
while read -r line; do
  echo "$line" | python3 -m json.tool >/dev/null || fail "chat --json: not JSON: $line"
done <out
printf 'Hello\n/what\n' >talk
input=talk timeout 300 "$bin" chat -n 4 <talk >out 2>err
grep -q "^lowkey: unknown command '/what'" err || fail "chat: unknown command: $(cat err)"

for i in $(seq 1 300); do echo "Line $i: the river ran past house number $((i * 7 % 31))."; done >text
good perplexity -f text -c 256 --chunks 1 --kv f16 --kv best-3 --json
json 'list(d)[:4] == ["model","n_ctx","n_tok","results"] and d["n_ctx"] == 256'
json "all(list(r)[:9] == $result_keys for r in d['results'])"
json '[r["kv"] for r in d["results"]] == ["f16", "best-3"] and d["results"][0]["kl_mean"] <= d["results"][1]["kl_mean"]'
good perplexity -f text -c 256 --chunks 1
says 'same top'

# A sidecar is written completely or not at all.
bad "the text has" compress --method tale --text prompt -o x.lk.gguf
bad "groups of 2 heads do not divide" compress --method tale --group 2 --text text -o x.lk.gguf
bad "windows must have between 2 and" compress --method tale --text self -c 100000 -o x.lk.gguf
bad "the text has 100 tokens" compress --method tale --text self --tokens 100 -o x.lk.gguf
bad "remove --rank" compress --method kvheads --svd mean-pool --rank 25% --text text -o x.lk.gguf
bad "the text empty is empty" compress --method tale --text empty -o x.lk.gguf
[ ! -e x.lk.gguf ] || fail "a failed compress left a file"
good compress --method tale --text text --tokens 1k -c 512 -o x.lk.gguf --json
json 'd["ranks"] == "uniform" and list(d) == ["model","method","ranks","output","n_tok","seconds","peak_bytes","layers"] and d["n_tok"] == 1024 and len(d["layers"]) == 30'
# The first layers' values depend on little but the token, so their loss may be 0.
json 'all(list(l) == ["v"] and l["v"]["rank"] == [96] and 0 <= l["v"]["lost"] < 0.3 for l in d["layers"]) and d["layers"][-1]["v"]["lost"] > 0'
[ -s x.lk.gguf ] && [ ! -e x.lk.gguf.stats ] || fail "compress: $(ls)"
bad "run 'lowkey compress --method palu --text BOOK -o FILE' once for this model" run --kv tale -p a
good plan -c 512
says 'Presets that need a sidecar are omitted'
! grep -q '^tale' out || fail "plan shows a preset without the sidecar it needs"
good plan -c 512 --sidecar x.lk.gguf
grep -q '^tale' out || fail "plan omits a preset that the sidecar is for"
! grep -q '^palu' out || fail "plan shows a preset that this sidecar is not for"
good plan -c 512,4k --sidecar x.lk.gguf --kv tale --kv f16 --sessions 16
says 'the caches of 16 sessions and the sidecar'
says 'tale with its sidecar is smaller than f16 from 1 session of 4,096 tokens on.'
good plan -c 4k --sidecar x.lk.gguf --kv tale --kv f16 --sessions 16 --json
json 'd["sessions"] == 16 and d["plans"][1]["sidecar_bytes"] == 0 and d["plans"][1]["total_bytes"] == 16 * d["plans"][1]["cache_bytes"]'
json 'all(p["total_bytes"] == p["sidecar_bytes"] + 16 * (p["cache_bytes"] + p["derived_bytes"]) for p in d["plans"])'
# V alone, all 192 of 192 components, down and up in bytes with scales, and the ranks.
json '0 <= d["plans"][0]["sidecar_bytes"] - 30 * 2 * (192 * 192 + 192 * 4) < 30 * 256'
bad "--type: 'q4' is not q8, f16 or f32" compress --method tale --type q4 --text text -o x.lk.gguf
good compress --method palu --svd plain --rank 25% --truncate -o y.lk.gguf
says 'K before RoPE'
says 'ranks: uniform'
good compress --method palu --text text --tokens 1k -c 512 --fisher-tokens 128 --fisher-ctx 64 -o z.lk.gguf
says 'ranks: fisher (--rank-search uniform'
good compress --method palu --rank 40% --text text --tokens 1k -c 512 --rank-search uniform -o z.lk.gguf
says 'ranks: uniform'
# No sum of ranks to distribute: nothing is searched.
good compress --method palu --text text --tokens 1k -c 512 -o z.lk.gguf
says 'ranks: uniform'
bad "need a sidecar" serve --port 0 --kv best-1.9
bad "holds a sidecar, not a model" info -m y.lk.gguf
bad "sidecar text: not a GGUF file" info --sidecar text

# ---- export ----

bad "no sidecar: give --sidecar FILE" export -o y.gguf
bad "no output: give -o FILE" export --sidecar x.lk.gguf
bad "--type: 'q4_0' is not auto, q8_0, f16 or f32" export --sidecar x.lk.gguf -o y.gguf --type q4_0
bad "rotates its keys" export --sidecar x.lk.gguf -o y.gguf
bad "has no adapters" export --sidecar x.lk.gguf -o y.gguf --adapters-only
bad "sidecar text: not a GGUF file" export --sidecar text -o y.gguf
[ ! -e y.gguf ] || fail "a failed export left a file"

# Training texts: with --markup special tokens are one token each, as in text that the model generated.
for i in $(seq 1 20); do printf '<|im_end|>'; done >marked
bad "the texts have 1 sequences of 16 tokens" train less -f marked --markup -c 16 --budget 8 --sequences 99 -o z
bad "fewer than the 99 of --sequences" train less -f marked -c 16 --budget 8 --sequences 99 -o z
grep -q 'have 1 seq' err && fail "special tokens were parsed without --markup"
timeout --foreground --preserve-status --signal INT 5 "$bin" train less -f text -c 256 --budget 32 -o z >out 2>err
status=$?
[ $status = 130 ] || fail "interrupted train: status $status, expected 130: $(head -c 300 err)"
grep -q '^lowkey: cancelled.*the same command' err || fail "interrupted train says: $(cat err)"
LOWKEY_BIN=$bin "$experiments/own-text" "$model" --tokens 24 --longest 8 --parallel 2 -t 1 --port $((20000 + RANDOM % 10000)) >own 2>err || fail "own-text: $(head -c 400 err)"
head -c 13 own | grep -q '^<|endoftext|>$' || fail "own-text: $(head -c 200 own)"
grep -q '<|im_start|>assistant' own || fail "own-text wrote no conversation"
count=$((count + 1))
bad "cannot write" compress --method palu --svd plain -o directory

# 700 tokens are more than bench computes for a depth; 9000 are more than the trained context length.
timeout 300 "$bin" bench --kv f16 --depth 9000 -p 0 -n 1 --repeat 1 --json >out 2>err || fail "bench --depth 9000: $(cat err)"
grep -q '^lowkey: warning: 9,000 tokens of context, but the model was trained for 8,192; ' err || fail "bench does not warn: $(cat err)"
json 'd["results"][0]["n_repeated"] == 9000 - 512 and d["results"][0]["prefill_tps"] is None'
good bench --kv f16 --kv best-3 --depth 700,0 -p 40 -n 3 --repeat 2 --json
json 'list(d) == ["model","kernels","n_threads","n_prefill","n_decode","n_repeat","n_text","results"]'
json "all(list(r) == $bench_keys for r in d['results'])"
json '[(r["kv"], r["depth"]) for r in d["results"]] == [("f16", 0), ("f16", 700), ("best-3", 0), ("best-3", 700)]'
json 'all(0 < r["decode_tps"] <= r["decode_tps_best"] and 0 < r["prefill_tps"] <= r["prefill_tps_best"] for r in d["results"])'
json 'all(r["n_tok"] == (r["depth"] or 4) and r["n_repeated"] == max(0, r["depth"] - 512) for r in d["results"])'
json 'd["results"][3]["cache_bytes"] < d["results"][1]["cache_bytes"] and 16 <= d["results"][1]["bits_per_value"] < 17'
good bench --kv "my.recipe" --depth 0 -p 8 -n 0 --repeat 1 --json
json 'd["results"][0]["kv"].startswith("sink 4: f16;") and d["results"][0]["decode_tps"] is None and d["results"][0]["prefill_tps"] > 0'
good bench --kv f16 --depth 0 -p 0 -n 2 --repeat 1 -f text
says 'decode t/s'
bad "give at least" bench --depth 600 -f prompt -n 1

# --foreground: timeout otherwise signals the program and then its group, and a second Ctrl-C ends it at once.
timeout --foreground --preserve-status --signal INT 3 "$bin" bench --kv f16 --depth 0 -p 0 -n 8000 --repeat 1 >out 2>err
status=$?
[ $status = 130 ] || fail "interrupted bench: status $status, expected 130: $(head -c 300 err)"
[ ! -s out ] || fail "interrupted bench: stdout is: $(head -c 400 out)"
# ---- evaluation -----------------------------------------------------------------------------------

bad "give --text" eval text
bad "is empty" eval text --text empty
bad "is empty" eval bytes --text empty
bad "fewer than the context" eval text --text prompt
bad "is not a results file" eval passkey -c 1024 --limit 2 -o prompt
bad "directory" eval passkey -c 1024 --limit 2 -o directory
good eval passkey -c 1024 --limit 2 --kv best-3 --kv llama.cpp:q8_0 -o results.jsonl --json
python3 - <<'LINES' || fail "eval --json: $(cat out)"
import json
lines = [json.loads(line) for line in open("out")]
assert [(l["type"], l["task"], l["kv"]) for l in lines] == [("result", "passkey", k) for k in ("f16", "best-3", "llama.cpp:f16", "llama.cpp:q8_0")]
assert all({"bits_per_value", "bytes_per_token", "score", "nll"} <= set(l["metrics"]) for l in lines)
assert all(set(m) == {"value", "stderr", "n"} for l in lines for m in l["metrics"].values())
first = json.loads(open("results.jsonl").readline())
assert first["type"] == "run" and first["command"].startswith("lowkey eval passkey") and first["cpu"] and first["date"]
LINES
cp results.jsonl before
good eval passkey -c 1024 --limit 2 --kv best-3 --kv llama.cpp:q8_0 -o results.jsonl
says 'nll_change'
[ "$(grep -vc '"type":"run"' results.jsonl)" = "$(grep -vc '"type":"run"' before)" ] || fail "a finished run is repeated"
bad "another --seed" eval passkey -c 1024 --limit 2 --kv best-3 -o results.jsonl --seed 9
bad "another kind of weights" eval passkey -c 1024 --limit 2 --kv best-3 -o results.jsonl --weights f32
good eval text --text text -c 256 --limit 1 --kv best-3
says 'noise floor'
for i in $(seq 1 60); do cat text; done >long
timeout --foreground --preserve-status --signal INT 10 "$bin" eval text -t 1 --text long -c 128 --limit 400 --kv best-3 -o stopped.jsonl >out 2>err
status=$?
[ $status = 130 ] || fail "interrupted eval: status $status, expected 130: $(head -c 300 err)"
grep -q '^lowkey: interrupted; the same command continues' err || fail "interrupted eval says: $(cat err)"
grep -q '"type":"item"' stopped.jsonl || fail "an interrupted eval lost its items"
good inspect --kv best-3 -f text -c 600
says 'with best-3: 600 tokens'
says 'distance'
good inspect --kv best-3 -f text -c 600 --json
json 'd["n_tok"] == 600 and d["n_query"] == 32 and 0 < d["hellinger"] < 1'
json '[l["name"] for l in d["levels"]] == ["sink 4", "body", "recent 20%", "window 64", "newest"]'
json 'all(abs(sum(l[side]["attention"] for l in layer["levels"]) - 1) < 1e-3 for layer in d["layers"] for side in "kv")'
json 'all(sum(l[side]["rows"] for l in layer["levels"]) == 600 for layer in d["layers"] for side in "kv")'
json 'd["levels"][1]["v"]["error"] > 10 * d["levels"][0]["v"]["error"] and d["levels"][1]["k"]["bits_per_value"] < 4'
good inspect --kv f16 -c 100 --layers
says 'f16'
bad "fewer than the 5,000 of --ctx" inspect -f prompt -c 5000
bad "is empty" inspect -f empty

timeout --foreground --preserve-status --signal INT 3 "$bin" run -f text -n 3000 >out 2>err
status=$?
[ $status = 130 ] || fail "interrupted run: status $status, expected 130: $(head -c 300 err)"

[ $failures = 0 ] || exit 1
echo "$count checks passed"
