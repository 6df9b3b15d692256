#!/usr/bin/env bash
# A C program can use the installed library and laboratory through pkg-config and through the CMake
# package, from a prefix that was moved after the installation.
set -euo pipefail

: "${LOWKEY_BUILD:?the build directory}" "${LOWKEY_SOURCE:?the source directory}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "test_install: $*"; exit 1; }
cached() { sed -n "s/^$1:[A-Z]*=//p" "$LOWKEY_BUILD/CMakeCache.txt"; }

# Users of an instrumented library must link the same sanitizers.
flags=$(cached LOWKEY_SANITIZE)
flags=${flags:+-fsanitize=$flags}

cmake --install "$LOWKEY_BUILD" --prefix "$work/first" >"$work/log" || fail "cmake --install failed"
mv "$work/first" "$work/moved"
prefix=$work/moved

if [ -f "$LOWKEY_BUILD/lowkey.1" ]; then
  for file in man/man1/lowkey.1 bash-completion/completions/lowkey; do
    [ -s "$prefix/share/$file" ] || fail "share/$file was not installed"
  done
fi

# Each example with its package, that package's header, and how it links: "shared" without --static, if liblowkey.so was
# built.
examples=("generate lowkey lowkey.h static" "score lowkey-lab lowkey_lab.h static")
so=$(find "$prefix" -name liblowkey.so)
[ -z "$so" ] || examples+=("generate lowkey lowkey.h shared")

# Without arguments, an example prints its usage and the version, and ends with status 2.
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
for example in "${examples[@]}"; do
  read -r name package header kind <<<"$example"
  [ -f "$prefix/include/$header" ] || fail "$header was not installed"
  command -v pkg-config >/dev/null || continue
  pkg-config --validate "$package" || fail "$package.pc is not valid"
  words=$(pkg-config --cflags --libs "$package")
  if [ "$kind" = static ]; then
    words=$(pkg-config --static --cflags --libs "$package")
    words=${words//-llowkey /-l:liblowkey.a } # the linker prefers a shared library
  fi
  read -r -a options <<<"$words"
  # shellcheck disable=SC2086
  ${CC:-cc} -std=c11 $flags "$LOWKEY_SOURCE/examples/$name.c" -o "$work/$name" "${options[@]}" ||
    fail "$name does not build by pkg-config ($kind)"
  try "$work/$name"
done

functions_of() { sed -nE '/^typedef/d; s/^[a-z].*\b(lk_[a-z0-9_]+)\(.*/\1/p' "$@"; }

# A program with each public header alone, in C and in C++, that uses all of its functions.
link=()
! command -v pkg-config >/dev/null || read -r -a link <<<"$(pkg-config --static --libs lowkey-lab)"
[ ${#link[@]} != 0 ] || link=(-fsyntax-only)
for header in "$prefix"/include/lowkey*.h; do
  { printf '#include <%s>\nint main(void) {\n  void (*const all[])(void) = {\n' "${header##*/}"
    functions_of "$header" | sed 's/.*/    (void (*)(void))&,/'
    printf '  };\n  return !all[sizeof all / sizeof *all - 1];\n}\n'; } >"$work/header.c"
  for compiler in "${CC:-cc} -std=c11" "${CXX:-c++} -std=c++11 -x c++"; do
    read -r -a words <<<"$compiler"
    # shellcheck disable=SC2086
    "${words[@]}" $flags -Wall -Wextra -Wpedantic -Werror -I"$prefix/include" "$work/header.c" -x none "${link[@]}" \
      -o "$work/header" || fail "a program with ${header##*/} does not build with $compiler"
  done
done

# liblowkey.so exports public functions only, and needs no shared library of llama.cpp or ggml.
if [ -n "$so" ] && command -v nm >/dev/null; then
  names=$(nm -D --defined-only "$so" | awk '{print $3}')
  for name in $names; do
    grep -q "\b$name(" "$prefix"/include/lowkey*.h || fail "liblowkey.so exports $name, which no header declares"
  done
  # Compressing, training, exporting and tuning are in the static laboratory only.
  for name in $(functions_of "$prefix"/include/lowkey*.h | grep -vE '^lk_(compress|train|tune|export)'); do
    grep -qx "$name" <<<"$names" || fail "liblowkey.so does not export $name"
  done
  [ -L "$so" ] || fail "liblowkey.so has no version"
fi

cmake -S "$LOWKEY_SOURCE/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_C_FLAGS="$flags" >"$work/log" 2>&1 || { cat "$work/log"; fail "find_package(lowkey) failed"; }
cmake --build "$work/build" >"$work/log" 2>&1 ||
  { cat "$work/log"; fail "the examples do not build by CMake"; }
for example in "${examples[@]}"; do
  try "$work/build/${example%% *}"
done

if [ -x "$LOWKEY_BUILD/lowkey" ]; then
  "$prefix/bin/lowkey" --version >/dev/null || fail "the installed program does not run"
fi
echo "test_install: passed"
