#!/usr/bin/env bash
# The installed library serves a C program by pkg-config and by its CMake package, from a prefix that
# was moved after the installation.
set -euo pipefail

: "${LOWKEY_BUILD:?the build directory}" "${LOWKEY_SOURCE:?the source directory}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "test_install: $*"; exit 1; }

# What the build was instrumented with, its users must link too.
flags=$(sed -n 's/^LOWKEY_SANITIZE:STRING=//p' "$LOWKEY_BUILD/CMakeCache.txt")
flags=${flags:+-fsanitize=$flags}

cmake --install "$LOWKEY_BUILD" --prefix "$work/first" >"$work/log" || fail "cmake --install failed"
mv "$work/first" "$work/moved"
prefix=$work/moved
[ -f "$prefix/include/lowkey.h" ] || fail "lowkey.h was not installed"

# Both examples refuse to run without arguments, with one line that names them and the version.
try() {
  local out status=0
  out=$("$1" 2>&1) || status=$?
  [ "$status" = 2 ] || fail "$1 without arguments ended with status $status"
  [[ $out == usage:*"(lowkey "[0-9]* ]] || fail "$1 said: $out"
}

pc=$(find "$prefix" -name lowkey.pc)
[ -n "$pc" ] || fail "lowkey.pc was not installed"
export PKG_CONFIG_PATH=${pc%/*}
libs=${PKG_CONFIG_PATH%/pkgconfig}
export LD_LIBRARY_PATH=$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} # for a shared liblowkey
if command -v pkg-config >/dev/null; then
  pkg-config --validate lowkey || fail "lowkey.pc is not valid"
  read -r -a options <<<"$(pkg-config --static --cflags --libs lowkey)"
  for name in generate score; do
    # shellcheck disable=SC2086
    ${CC:-cc} -std=c11 $flags "$LOWKEY_SOURCE/examples/$name.c" -o "$work/$name" "${options[@]}" ||
      fail "$name does not build by pkg-config --static"
    try "$work/$name"
  done
fi

cmake -S "$LOWKEY_SOURCE/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_FLAGS="$flags" \
  >"$work/log" 2>&1 || { cat "$work/log"; fail "find_package(lowkey) failed"; }
cmake --build "$work/build" >"$work/log" 2>&1 || { cat "$work/log"; fail "the examples do not build by CMake"; }
for name in generate score; do
  try "$work/build/$name"
done

if [ -x "$LOWKEY_BUILD/lowkey" ]; then
  "$prefix/bin/lowkey" --version >/dev/null || fail "the installed program does not run"
fi
echo "test_install: passed"
