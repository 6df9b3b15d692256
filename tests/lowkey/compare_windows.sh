#!/usr/bin/env bash
# Run lowkey.exe (build-windows, made by scripts/test windows) in wine: run, chat and serve answer with SmolLM2, in the same words
# with one recipe, and `run` in the words of this machine's program if that was built.
set -euo pipefail

cd "$(dirname "$0")/../.."
program=${LOWKEY_BUILD_DIR:-build-windows}/lowkey.exe
work=$(mktemp -d)
server=
stop() { [ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"; }
trap stop EXIT
export WINEDEBUG=-all LOWKEY_TUNE=0
fail() { echo "FAILED: $*"; exit 1; }

model=$(scripts/fetch-model smollm2)
# With f32 weights: products of quantized ones are rounded differently for each kind of CPU, and a small model then answers
# in other words.
prompt=(-p "The capital of France is" -n 16 --greedy --kv f16 --weights f32 -t 2)
text=$(timeout 300 wine "$program" run -m "Z:$model" "${prompt[@]}" 2>"$work/run.err") || fail "run: $(cat "$work/run.err")"
echo "run: ${text//$'\n'/ }"
[ -n "$text" ] || fail "run prints nothing"
if [ -x build/lowkey ]; then
  host=$(build/lowkey run -m "$model" "${prompt[@]}" 2>/dev/null)
  [ "$text" = "$host" ] || fail "run: this machine's words are: $host"
fi

answer=$(printf 'Name one color.\n' | timeout 300 wine "$program" chat -m "Z:$model" --greedy -n 12 -t 2 2>"$work/chat.err") ||
  fail "chat: $(cat "$work/chat.err")"
echo "chat: ${answer//$'\n'/ }"
[ -n "$answer" ] || fail "chat prints nothing"

wine "$program" serve -m "Z:$model" --port 18099 --kv f16 --weights f32 --ctx 512 -t 2 >"$work/serve.out" 2>"$work/serve.err" &
server=$!
for _ in $(seq 60); do
  ! grep -q 'http://127.0.0.1:18099' "$work/serve.out" || break
  kill -0 "$server" 2>/dev/null || fail "serve: $(cat "$work/serve.err")"
  sleep 1
done
reply=$(python3 - <<'END'
import json, urllib.request
body = {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}
request = urllib.request.Request("http://127.0.0.1:18099/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=300))["choices"][0]["text"])
END
) || fail "serve: $(cat "$work/serve.err")"
echo "serve: ${reply//$'\n'/ }"
[ "$(tr -d '[:space:]' <<<"$reply")" = "$(tr -d '[:space:]' <<<"$text")" ] || fail "serve answers in other words than run"
