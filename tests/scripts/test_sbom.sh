#!/usr/bin/env bash
# scripts/sbom prints valid JSON that names llama.cpp with its pin and each linked library with its version.
# With --debs it reads the versions from files. Skipped (77) without dpkg.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
source=${LOWKEY_SOURCE:?set LOWKEY_SOURCE to the source directory}
command -v dpkg-query >/dev/null || { echo "dpkg is not installed"; exit 77; }
ldd "$bin" | grep -q '=> /' || { echo "the program is linked statically"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$source/scripts/sbom" "$bin" >"$work/sbom.json" || { echo "FAILED: status $?"; exit 1; }
python3 - "$work/sbom.json" "$source/scripts/deps" "$bin" <<'END' || { echo FAILED; exit 1; }
import hashlib, json, subprocess, sys
sbom = json.load(open(sys.argv[1]))
assert sbom["bomFormat"] == "CycloneDX" and sbom["specVersion"] == "1.5"
own = sbom["metadata"]["component"]
assert own["hashes"][0]["content"] == hashlib.sha256(open(sys.argv[3], "rb").read()).hexdigest()
part = {c["name"]: c for c in sbom["components"]}
assert len(part) == len(sbom["components"]), "a component appears twice"
assert f"sha256={part['llama.cpp']['hashes'][0]['content']}\n" in open(sys.argv[2]).read()
for c in sbom["components"]:
    assert c["version"] and c["purl"].startswith("pkg:"), c
libraries = subprocess.run(["ldd", sys.argv[3]], capture_output=True, text=True, check=True).stdout
for library, name in (("libjansson", "libjansson"), ("libmicrohttpd", "libmicrohttpd"), ("libc.so", "libc6")):
    assert library not in libraries or any(n.startswith(name) for n in part), name
END

for name in libc6 libxxhash-dev extra; do
  mkdir -p "$work/$name/DEBIAN" "$work/debs"
  printf 'Package: %s\nVersion: 9.1-2\nArchitecture: arm64\nMaintainer: x <x@localhost>\nDescription: x\n' $name >"$work/$name/DEBIAN/control"
  dpkg-deb --root-owner-group --build "$work/$name" "$work/debs/${name}_9.1-2_arm64.deb" >/dev/null || exit 1
done
"$source/scripts/sbom" --debs "$work/debs" "$bin" extra >"$work/other.json" || { echo "FAILED: --debs: status $?"; exit 1; }
[ "$(grep -o 'pkg:deb/debian/[^"]*' "$work/other.json" | tr '\n' ' ')" = "$(printf 'pkg:deb/debian/%s@9.1-2?arch=arm64 ' extra libc6 libxxhash-dev)" ] ||
  { echo FAILED; cat "$work/other.json"; exit 1; }
if "$source/scripts/sbom" --debs "$work/debs" "$bin" missing 2>"$work/err" || ! grep -q "has not one file of missing" "$work/err"; then
  echo "FAILED: a missing file: $(cat "$work/err")"
  exit 1
fi
