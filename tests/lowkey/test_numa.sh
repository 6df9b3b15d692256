#!/usr/bin/env bash
# Ranks in one process (--numa): they answer like one, each on its own processors, and end with a message.
#
# LOWKEY_BIN: the program. LOWKEY_BUILD: the build folder
# With one processor the tests are skipped (status 77).
set -u

build=${LOWKEY_BUILD:?set LOWKEY_BUILD to the build folder}
# shellcheck source=../support/program.sh
. "$(dirname "$0")/../support/program.sh" || exit 1
[ "$(nproc)" -ge 2 ] || { echo "skipped: this needs two processors"; exit 77; }
[ -x "$build/tests/write_tiny_models" ] || { echo "skipped: write_tiny_models was not built"; exit 77; }
"$build/tests/write_tiny_models" "$work" llama-spm >/dev/null || exit 1
export LOWKEY_MODEL=$work/llama-spm.gguf

# works ARGUMENT...: the program succeeds without a message. The contexts are longer than those of the tiny model's
# training, which is a warning.
works() {
  count=$((count + 1))
  timeout 60 "$bin" "$@" -t 1 </dev/null >out 2>err || fail "$*: $(head -c 600 err)"
  sed -i '/^lowkey: warning: .* the model was trained for/d' err
  [ ! -s err ] || fail "$*: stderr is: $(head -c 600 err)"
}
answers() { works run -c 8k -n 12 --greedy "$@"; }

# 1,400 tokens, in several stripes.
for i in $(seq 1 70); do printf 'line %d of the text. ' "$i"; done >text

# ---- answers ------------------------------------------------------------------------------------

for recipe in f16 h2o; do
  answers -f text --kv $recipe
  cp out expected
  answers -f text --kv $recipe --numa 2
  cmp -s out expected || fail "two ranks answer differently with $recipe: $(cat out)"
done
answers -p x --kv best-4 --numa auto # one rank or several
answers -f text --kv best-4 --numa 2 --session saved --json
json 'd["answer_tokens"] == 12 and d["exchanges"]["exchanges_per_token"] >= 3'
answers -p ' and' --session saved # continues in one process
works bench --numa 2 --depth 2k -p 0 -n 4 --repeat 1 --kv best-4 --json
json 'd["results"][0]["n_rank"] == 2 and d["results"][0]["sent_per_token"] > 0'
json 'd["results"][0]["max_rank_bytes"] < 0.8 * d["results"][0]["cache_bytes"]'
cp out ranks.json
printf 'one question\n' | timeout 60 "$bin" chat --numa 2 --greedy -n 5 -t 1 >out 2>err || fail "chat: $(head -c 600 err)"

# ---- the planned speed --------------------------------------------------------------------------

# Exchanges are those that were counted; messages of some hundred bytes are not planned. Times are those of the line.
python3 - <<'END'
import json
d = json.load(open("ranks.json"))
result = d["results"][0]
points = [(0, 0.010), (1000, 0.020), (3000, 0.040)]
d["results"] = [{"kv": "best-4", "depth": depth, "decode_tps": 1 / s} for depth, s in points] + [result]
json.dump(d, open("speed.json", "w"))
END
good plan --kv best-4 -c 8k --ranks 2 --speed speed.json --latency 1 --bandwidth 0.008 --json
json '(lambda p, r: p["exchanges_per_token"] == r["exchanges_per_token"] and
       0 < r["received_per_token"] - p["received_per_token"] < 600)(
       d["plans"][0], json.load(open("ranks.json"))["results"][0])'
json '(lambda p, near: near(1 / p["decode_tps_one"], 0.01 + 8192e-5) and
       near(1 / p["decode_tps"], 0.01 + 4096e-5 + p["exchanges_per_token"] * 1e-3 + p["received_per_token"] * 1e-6) and
       abs(p["ranks_win_from"] - (p["exchanges_per_token"] * 1e-3 + p["received_per_token"] * 1e-6) / 0.5e-5) <= 1)(
       d["plans"][0], lambda a, b: abs(a - b) < 1e-4 * b)'
good plan --kv best-4 -c 8k --ranks 2 --speed speed.json
says 'faster from'
bad 'has not two depths of f16' plan --kv f16 --ranks 2 --speed speed.json
bad "was not written by 'lowkey bench --json'" plan --kv f16 --ranks 2 --speed text
bad 'with --kv, and not --csv' plan --ranks 2 --speed speed.json

# ---- processors, and Ctrl-C ---------------------------------------------------------------------

# A script's background jobs ignore SIGINT, and the program keeps to that.
python3 - "$bin" <<'END' || fail "processors and Ctrl-C"
import os, signal, subprocess, sys, time
allowed = os.sched_getaffinity(0)
with open("out", "wb") as out, open("err", "wb") as err:
    run = subprocess.Popen([sys.argv[1], "run", "-f", "text", "-c", "100k", "-n", "90000", "--ignore-eos", "--greedy",
                            "--numa", "2", "-t", "1"], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                           preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    for _ in range(300):
        if os.path.getsize("out") > 0:
            break
        time.sleep(0.05)
    sets = set()
    for task in os.listdir(f"/proc/{run.pid}/task"):
        sets.add(frozenset(os.sched_getaffinity(int(task))))
    run.send_signal(signal.SIGINT)
    status = run.wait(10)
message = open("err").read()
if len(sets) != 2 or frozenset.union(*sets) != allowed or frozenset.intersection(*sets):
    sys.exit(f"threads run on {[sorted(s) for s in sets]} of {sorted(allowed)}")
if status != 130 or any(not line.startswith("lowkey: warning: ") for line in message.splitlines()):
    sys.exit(f"after Ctrl-C: status {status}, {message}")
END

# ---- errors -------------------------------------------------------------------------------------

for value in 0 x 1.5 65 -1; do bad "'$value' is neither auto nor a number" run -p x --numa "$value"; done
all=$bin bin=$work/one
printf '#!/bin/sh\nexec taskset -c %s "%s" "$@"\n' "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" "$all" >one
chmod +x one
bad "2 groups need as many processors, but this process may use 1" run -p x --numa 2
bin=$all
bad 'no-such.gguf' run -p x --numa 2 -m no-such.gguf
bad 'several ranks' run -p x --numa 2 --kv shadowkv
bad "unknown option '--numa'" plan --numa 2

[ $failures = 0 ] || exit 1
echo "$count runs"
