#!/usr/bin/env bash
# Uses `lowkey serve` from the openai package. The package is installed into the cache directory
# the first time, unless $LOWKEY_PYTHON names a Python that has it. Skipped (77) if the default model
# or the package is not available. With LOWKEY_TEST_RANKS=N the server has N ranks.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
python=${LOWKEY_PYTHON:-python3}
cache=${LOWKEY_CACHE:-$HOME/.cache/lowkey}
model=${LOWKEY_MODEL:-${LOWKEY_MODELS:-$cache/models}/SmolLM2-135M-Instruct.Q4_1.gguf}
version=3.54.0
packages=$cache/openai-$version
here=$(cd "$(dirname "$0")" && pwd)
[ -f "$model" ] || { echo "no model at $model"; exit 77; }
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

have_package() { "$python" -c 'import openai' 2>/dev/null; }
if ! have_package; then
  export PYTHONPATH=$packages
  if ! have_package; then
    "$python" -m pip install -q --disable-pip-version-check --target "$work/packages" \
      "openai==$version" >"$work/log" 2>&1 &&
      mkdir -p "$(dirname "$packages")" && mv -T "$work/packages" "$packages" 2>>"$work/log"
    have_package ||
      { echo "cannot install openai $version: $(tail -n 1 "$work/log")"; exit 77; }
  fi
fi

echo secret-key >"$work/keys"
n_rank=${LOWKEY_TEST_RANKS:-1} start=()
[ "$n_rank" = 1 ] ||
  start=(mpirun -q -n "$n_rank" --allow-run-as-root --oversubscribe --bind-to none --mca btl "vader,self")
"${start[@]}" "$bin" serve -m "$model" -t 1 --port 0 -c 2k --allow-kv presets --queue 8 \
  --api-key-file "$work/keys" >"$work/out" 2>"$work/err" &
server=$!
for _ in $(seq 100); do
  port=$(sed -n 's/.*:\([0-9]*\), cache.*/\1/p' "$work/out")
  [ -n "$port" ] && break
  sleep 0.1
done
[ -n "$port" ] || { echo "FAILED: the server did not start: $(cat "$work/err")"; exit 1; }
timeout 200 "$python" "$here/openai_check.py" "$port" ||
  { echo "FAILED"; cat "$work/err"; exit 1; }

# SIGTERM stops the server without any message. mpirun would give the ranks a second to end.
rank_0=$server
for pid in $(pgrep -P "$server"); do
  grep -qz '^OMPI_COMM_WORLD_RANK=0$' "/proc/$pid/environ" && rank_0=$pid
done
kill -TERM "$rank_0"
wait "$server" || { echo "FAILED: status $? after SIGTERM"; exit 1; }
[ ! -s "$work/err" ] || { echo "FAILED: stderr: $(cat "$work/err")"; exit 1; }
