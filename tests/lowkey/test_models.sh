#!/usr/bin/env bash
# Tests of `lowkey models` and of -m NAME with the folders of other programs, made here with a tiny random model; nothing in
# them changes.
set -u

tests=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=../support/program.sh
. "$tests/support/program.sh" || exit 1
write_tiny_model tiny.gguf
export HOME=$work/home
unset LOWKEY_CACHE LOWKEY_MODEL HF_HUB_CACHE HF_HOME LLAMA_CACHE OLLAMA_MODELS
mkdir -p home

[ -d /usr/share/ollama/.ollama/models ] || { good models; says 'no models in the folders of'; }
bad "cannot open llama9: No such file or directory, and no model has this name" info -m llama9

hub=home/.cache/huggingface/hub/models--owner--repository
mkdir -p home/.cache/lowkey/models home/.lmstudio/models/maker/repo home/.cache/llama.cpp $hub/blobs \
  $hub/snapshots/0123/quants $hub/snapshots/4567
cp tiny.gguf home/.cache/lowkey/models/First-Model.gguf
cp tiny.gguf home/.lmstudio/models/maker/repo/second.Q8_0.gguf
echo vision >home/.lmstudio/models/maker/repo/mmproj-second.gguf
echo text >home/.lmstudio/models/maker/repo/notes.txt
head -c 100 tiny.gguf >home/.cache/llama.cpp/cut.gguf
cp tiny.gguf $hub/blobs/abc
for snapshot in 0123/quants 4567; do ln -s ../../../blobs/abc $hub/snapshots/$snapshot/third.gguf; done
rm $hub/snapshots/4567/third.gguf
ln -s ../../blobs/abc $hub/snapshots/4567/third.gguf
ln -s .. home/.lmstudio/models/loop
for part in 1 2; do echo part >home/.cache/llama.cpp/big-0000$part-of-00002.gguf; done

models=home/.ollama/models
digest=$(sha256sum tiny.gguf | cut -c1-64)
mkdir -p $models/blobs $models/manifests/registry.ollama.ai/library/tiny $models/manifests/registry.ollama.ai/library/bad
cp tiny.gguf $models/blobs/sha256-"$digest"
manifest() {
  printf '{"layers": [{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:00"},
    {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:%s"}]}' "$1"
}
manifest "$digest" >$models/manifests/registry.ollama.ai/library/tiny/latest
manifest "$digest" >$models/manifests/registry.ollama.ai/library/tiny/2b
manifest "../../../../etc/passwd" >$models/manifests/registry.ollama.ai/library/bad/path
manifest "$(head -c 64 /dev/zero | tr '\0' a)" >$models/manifests/registry.ollama.ai/library/bad/missing
echo '{"layers": 5}' >$models/manifests/registry.ollama.ai/library/bad/shape
echo 'no JSON' >$models/manifests/registry.ollama.ai/library/bad/text

find home | sort | xargs -d '\n' ls -ld --time-style=full-iso | awk '{ $8 = ""; print }' >before
good models --json
names='{m["name"]: m for m in d["models"]}'
json "sorted(m['name'] for m in d['models'] if not m['path'].startswith('/usr')) == ['First-Model', 'big', 'cut', 'second.Q8_0', 'third', 'tiny:2b', 'tiny:latest']"
json "all(${names}[n]['runs'] for n in ('First-Model', 'second.Q8_0', 'third', 'tiny:latest'))"
json "not ${names}['cut']['runs'] and ${names}['cut']['lack'] and not ${names}['big']['runs']"
json "${names}['big']['bytes'] == 10 and ${names}['third']['bytes'] == ${names}['First-Model']['bytes'] > 1000"
json "[${names}[n]['source'] for n in ('First-Model', 'second.Q8_0', 'third', 'cut', 'tiny:2b')] == ['lowkey', 'LM Studio', 'Hugging Face', 'llama.cpp', 'ollama']"
good models
says 'First-Model'
says 'runs'

for name in First-Model first-model FIRST-MODEL.gguf second second.Q8_0 third tiny tiny:latest tiny:2b; do
  good info -m $name --json
  json 'd["n_layer"] > 0'
done
good run -m first -p 'one fish' -n 2
LOWKEY_MODEL=tiny good info --json
bad "'t' may be First-Model, third, cut, tiny:2b, ..." info -m t
bad "did you mean 'First-Model'?" info -m Furst-Modell
bad "'lowkey pull' what it can download" info -m gemma-3-270m
bad 'cannot open ./third: No such file' info -m ./third
bad 'cut' info -m cut
find home | sort | xargs -d '\n' ls -ld --time-style=full-iso | awk '{ $8 = ""; print }' >after
cmp -s before after || fail "the folders changed: $(diff before after | head -n 4)"

# A name of the folder that the command runs in comes first.
cp tiny.gguf third
good info -m third --json

LOWKEY_CACHE=$work/none HF_HUB_CACHE=$work/none OLLAMA_MODELS=$work/none good models --json
good pull
says smollm2

# On 80 columns a name that -m takes is whole; other columns are left out.
name=A-Model-Of-Some-Size-Instruct-0.5B.Q4_K_M
mkdir -p long/models
cp tiny.gguf long/models/$name.gguf
export LOWKEY_CACHE=$work/long HOME=$work/none
NO_COLOR=1 python3 "$tests/support/terminal.py" 80 "$bin" models >out || fail "models on 80 columns"
says "$name "
awk 'length > 80' out | grep . && fail "models has lines of more than 80 columns"
[ $failures = 0 ] || exit 1
echo "$count checks passed"
