#!/usr/bin/env bash
# Unpack llama.cpp, of the version that scripts/deps pins, in a folder.
#
# usage: fetch_llama.sh FOLDER
#
#   LOWKEY_CACHE   where scripts/deps keeps what it has downloaded (default: ~/.cache/lowkey)
set -euo pipefail

deps=$(cd "$(dirname "$0")/../../.." && pwd)/scripts/deps
version=$(sed -n 's/^version=//p' "$deps")
sha256=$(sed -n 's/^sha256=//p' "$deps")
tarball=llama_cpp_python-$version.tar.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp "${LOWKEY_CACHE:-$HOME/.cache/lowkey}/download/$tarball" "$work/" 2>/dev/null ||
  # pip may fail after the download, when it reads the metadata. Only the file is needed.
  python3 -m pip download -q --no-deps --no-binary :all: -d "$work" "llama-cpp-python==$version" || true
sha256sum --check --status <<<"$sha256  $work/$tarball" ||
  { echo "$tarball is missing or has the wrong SHA-256" >&2; exit 1; }
mkdir -p "$1"
tar -xzf "$work/$tarball" -C "$1" --strip-components=3 "llama_cpp_python-$version/vendor/llama.cpp"
