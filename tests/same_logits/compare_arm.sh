#!/usr/bin/env bash
# Run the programs for AArch64 (build-arm, made by scripts/test arm) in an emulator, next to this machine's (build): the
# kernels' benchmark runs, logits of tiny models are equal within rounding, SmolLM2 continues a text in the same words.
set -euo pipefail

cd "$(dirname "$0")/../.."
arm=${LOWKEY_BUILD_DIR:-build-arm} host=build
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
emulate() { QEMU_CPU=max qemu-aarch64 -L "${LOWKEY_CACHE:-$HOME/.cache/lowkey}/cross/linux-aarch64/root" "$@"; }

echo "bench/kern with one thread, d_head 64, 3 queries and 1 MB, in the emulator:"
emulate "$arm/bench/kern" 1 64 3 1

[ -x "$host/tests/dump_logits" ] || { echo "there is no $host/tests/dump_logits to compare with; run scripts/test build first"; exit 77; }

# The sum of squared differences of the logits, divided by the sum of their squares. Prompts see exact rows, and their
# logits differ by the order of sums. Later tokens see codes: a value at the edge of a step falls to its other side if it
# was computed in another order. So do the activations of weights of 8 bits, which ggml rounds.
mkdir "$work/models"
"$host/tests/write_tiny_models" "$work/models" >/dev/null
models=("$work"/models/{llama,qwen3,gemma3,granitehybrid-q8_0}.gguf)
"$host/tests/dump_logits" --threads 2 --share 16 --write "$work/logits" "${models[@]}" >"$work/host"
emulate "$arm/tests/dump_logits" --threads 2 --share 16 --near "$work/logits" "${models[@]}" >"$work/arm"
awk -F ' [|] ' '
  FNR == NR { host[FNR] = $4; next }
  $3 == "bytes held" { if ($4 != host[FNR]) { print "FAILED: other bytes: " $0; failed = 1 } next }
  { limit = $3 == "prompt" && $1 !~ /-q8/ ? 1e-6 : 2e-3; if (!($4 + 0 <= limit)) { print "FAILED: " $0; failed = 1 } }
  $3 == "prompt" && $1 !~ /-q8/ { n++; if ($4 + 0 > prompt) prompt = $4 + 0; next }
  { n++; if ($4 + 0 > later) later = $4 + 0 }
  END {
    print "normalized squared error of logits from this machine: " prompt " at most after a prompt, " later " after codes; " n " stages"
    exit failed || n == 0
  }' "$work/host" "$work/arm"

# With f32 weights: ggml rounds the inputs of quantized ones for each kind of CPU on its own, and where two tokens are
# nearly as likely, a small model then answers in other words.
model=$(scripts/fetch-model smollm2)
prompt=(run -m "$model" -p "The capital of France is" -n 16 --greedy --kv best-3 --weights f32)
text=$("$host/lowkey" "${prompt[@]}" 2>/dev/null)
emulated=$(emulate "$arm/lowkey" "${prompt[@]}" 2>/dev/null)
echo "SmolLM2: $emulated"
[ "$text" = "$emulated" ] || { echo "FAILED: this machine's words are: $text"; exit 1; }
