#!/usr/bin/env bash
# Several processes that mpirun starts: they answer like one, serve clients, save sessions for each other, and end with
# a message.
#
# LOWKEY_BIN: the program. LOWKEY_BUILD: the build folder
# Without MPI the tests are skipped (status 77).
set -u

build=${LOWKEY_BUILD:?set LOWKEY_BUILD to the build folder}
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../support/program.sh
. "$here/../support/program.sh" || exit 1
command -v mpirun >/dev/null || { echo "skipped: mpirun is not installed"; exit 77; }
ldd "$bin" | grep -q libmpi || { echo "skipped: the program was built without MPI (-DLOWKEY_MPI=ON)"; exit 77; }
[ -x "$build/tests/write_tiny_models" ] || { echo "skipped: write_tiny_models was not built"; exit 77; }
"$build/tests/write_tiny_models" "$work" llama-spm >/dev/null || exit 1
export PYTHONDONTWRITEBYTECODE=1
export LOWKEY_MODEL=$work/llama-spm.gguf
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=vader,self OMPI_MCA_rmaps_base_oversubscribe=1

# ranks N ARGUMENT...: run the program on N ranks, or without mpirun if N is 0; its status is in $status. The context
# is longer than in the tiny model's training, which is a warning.
ranks() {
  local n=$1 start=()
  shift
  [ "$n" = 0 ] || start=(mpirun -n "$n")
  count=$((count + 1))
  timeout 120 "${start[@]}" "$bin" "$@" -t 1 </dev/null >out 2>err
  status=$?
  sed -i '/^lowkey: warning: .* the model was trained for/d' err
}

# works N ARGUMENT...: the same, and it must succeed without a message.
works() {
  ranks "$@"
  [ $status = 0 ] || fail "$1 ranks, ${*:2}: status $status: $(head -c 600 err)"
  [ ! -s err ] || fail "$1 ranks, ${*:2}: stderr is: $(head -c 600 err)"
}

# refused TEXT N ARGUMENT...: it fails with one line of ours, which contains TEXT.
refused() {
  local text=$1
  shift
  ranks "$@"
  [ $status != 0 ] || fail "$1 ranks, ${*:2}: no error"
  [ "$(grep -c '^lowkey: ' err)" = 1 ] || fail "$1 ranks, ${*:2}: stderr is: $(head -c 600 err)"
  grep '^lowkey: ' err | grep -qF -- "$text" || fail "$1 ranks, ${*:2}: expected '$text' in: $(head -c 600 err)"
}

# 1,400 tokens and more, in several stripes.
for i in $(seq 1 260); do printf 'line %d of the text. ' "$i"; done >text

# ---- answers ------------------------------------------------------------------------------------

for recipe in f16 best-4 h2o; do
  works 0 run -f text -c 8k -n 12 --greedy --kv $recipe
  cp out expected
  n=2
  [ $recipe != f16 ] || n=3
  works $n run -f text -c 8k -n 12 --greedy --kv $recipe
  [ $recipe = best-4 ] || cmp -s out expected || fail "$n ranks answer differently with $recipe: $(cat out)"
done
works 1 run -p x -n 1
works 2 run -f text -c 8k -n 4 --greedy --kv best-3 --json --stream
json 'd["answer_tokens"] == 4 and d["cache"]["cache_bytes"] > 0 and d["exchanges"]["exchange_seconds"] > 0'
works 2 perplexity -f text -c 1k --chunks 1 --kv f16 --kv best-4 --json
json 'd["results"][0]["kl_mean"] < 1e-6 and d["results"][1]["bits_per_value"] < 8'
works 2 bench --depth 0,2k -p 64 -n 4 --repeat 1 --kv best-4 --json
json 'all(r["decode_tps"] > 0 and 0 < r["exchange_share"] <= 1 for r in d["results"])'
json 'all(r["exchanges_per_token"] >= 3 and r["sent_per_token"] > 0 for r in d["results"])'
count=$((count + 1))
printf 'one question\nanother one\n' |
  timeout 120 mpirun -n 2 "$bin" chat --greedy -n 5 -t 1 >out 2>err || fail "chat: $(head -c 600 err)"

# ---- stages ----

for recipe in f16 h2o; do
  works 0 run -f text -c 8k -n 12 --greedy --kv $recipe
  cp out expected
  works 2 run -f text -c 8k -n 12 --greedy --kv $recipe --stages 2
  cmp -s out expected || fail "2 stages answer differently with $recipe: $(cat out)"
done
works 0 run -f text -c 8k -n 12 --greedy --kv best-4 --stream
cp out expected
works 2 run -f text -c 8k -n 12 --greedy --kv best-4 --stream --stages 2
cmp -s out expected || fail "2 stages answer differently with --stream: $(cat out)"
works 4 run -f text -c 8k -n 4 --greedy --kv best-4 --stages 2 --json
json '[r["n_layer"] for r in d["ranks"]] == [1] * 4 and all(r["cache_bytes"] > 0 for r in d["ranks"])'
works 2 bench --depth 0,1k -p 64 -n 4 --repeat 1 --kv best-4 --stages 2 --json
json 'all(r["decode_tps"] > 0 for r in d["results"])'
works 0 plan --ranks 4 --stages 2 -c 4k --kv best-3 --json
json '[p["stage"] for p in d["plans"]] == [0, 1] and len(d["stages"]) == 2'
works 4 run -f text -c 8k -n 5 --greedy --kv best-4 --session staged --stages 2
cp staged copy
works 0 run -p ' and' -c 8k -n 8 --greedy --session copy
cp out expected
works 2 run -p ' and' -c 8k -n 8 --greedy --session staged --stages 2
cmp -s out expected || fail "a session of stages continues differently: $(cat out)"

# ---- saved sessions -----------------------------------------------------------------------------

works 3 run -f text -c 8k -n 5 --greedy --kv best-4 --session saved
for n in 1 2; do
  cp saved copy
  works $n run -p ' and' -c 8k -n 8 --greedy --session copy
  cp out continued.$n
done
cp saved copy
works 0 run -p ' and' -c 8k -n 8 --greedy --session copy
cmp -s out continued.1 || fail "a session of 3 ranks continues differently without mpirun"
works 2 run -p ' and' -c 8k -n 8 --greedy --session copy # one that was saved by one process

# ---- errors -------------------------------------------------------------------------------------

refused "'plan' runs in one process" 2 plan
refused 'no-such.gguf' 2 run -p x -m no-such.gguf
refused 'several ranks' 2 run -p x --kv 'rot4; read 25%'
refused 'the prompt is empty' 2 run -f /dev/null
refused 'divisor' 3 run -p x --stages 2
refused 'cannot be divided' 3 run -p x --stages 3
refused 'this process is alone' 0 run -p x --stages 2

# ---- a slow network -----------------------------------------------------------------------------

# Ranks in network namespaces. A delay of 20 ms shows in the time of an exchange.
network=$build/bench/delayed_network
if [ -x "$network" ] && unshare -n sh -c 'exec 3<>/dev/net/tun' 2>/dev/null; then
  count=$((count + 2))
  "$bin" run -f text -c 8k -n 5 --greedy --kv f16 -t 1 >expected 2>/dev/null
  timeout 60 "$network" 2 20 0 50 "$bin" run -f text -c 8k -n 5 --greedy --kv f16 -t 1 --json >out 2>err ||
    fail "delayed_network: $(head -c 600 err)"
  json 'd["text"] + "\n" == open("expected").read()'
  [ "$(grep -c 'without encryption' err)" = 1 ] || fail "ranks in several networks: stderr is: $(head -c 600 err)"
  # Rank 0 waits in all exchanges of a token but the first, which announces it.
  json '0.9 * 0.02 < d["exchanges"]["exchange_seconds"] / (d["exchanges"]["exchanges_per_token"] - 1) < 0.1'
  printf 'echo $$ >>pids.network; exec sleep 60\n' >wait
  timeout 60 "$network" 2 0 0 1 bash wait >out 2>err && fail "delayed_network goes on for longer than its time"
  while read -r pid; do kill -0 "$pid" 2>/dev/null && fail "delayed_network leaves a process"; done <pids.network
  grep -q 'the time is over' err || fail "delayed_network: $(head -c 600 err)"

  # A network that delivers nothing any more, as if a machine had lost its power. mpirun ends if it tests its
  # connections (docs/cluster.md).
  count=$((count + 1))
  export OMPI_MCA_oob_tcp_keepalive_time=1 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=3
  "$network" 2 0 0 60 "$bin" run -p x -n 100000 -c 128k --ignore-eos -t 1 >out 2>err &
  switch=$! started=$SECONDS
  until [ -s out ] || [ $((SECONDS - started)) -gt 20 ]; do sleep 0.1; done
  mpirun=$(pgrep -P $switch -x mpirun)
  kill -STOP $switch
  started=$SECONDS
  until grep -q '^State:.*Z' "/proc/$mpirun/status" || [ $((SECONDS - started)) -gt 20 ]; do sleep 0.1; done
  [ $((SECONDS - started)) -le 10 ] || fail "mpirun goes on for $((SECONDS - started)) s after the network is lost"
  kill -CONT $switch
  wait $switch && fail "a run without a network succeeds"
  unset OMPI_MCA_oob_tcp_keepalive_time OMPI_MCA_oob_tcp_keepalive_intvl OMPI_MCA_oob_tcp_keepalive_probes
fi

# ---- the server ---------------------------------------------------------------------------------

# The answers of two ranks equal one process's.
for n in 1 2; do
  count=$((count + 1))
  LOWKEY_TEST_RANKS=$n timeout 100 python3 "$here/../serve/ranks_check.py" "$bin" >answers.$n 2>err ||
    fail "serve, $n ranks: $(tail -n 3 answers.$n err)"
done
cmp -s answers.1 answers.2 || fail "serve: two ranks answer differently: $(diff answers.1 answers.2 | head -c 900)"
refused '--sandbox' 2 serve --port 0 --sandbox

# ---- a rank that dies ---------------------------------------------------------------------------

count=$((count + 1))
LOWKEY_TEST_RANKS=3 timeout 200 python3 "$here/kill_ranks.py" "$bin" -n 4 >out 2>err || fail "$(cat out err)"

[ $failures = 0 ] || exit 1
echo "$count runs"
