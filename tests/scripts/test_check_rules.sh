#!/usr/bin/env bash
# scripts/check fails on each rule that is broken on purpose, and names the place.
# LOWKEY_SOURCE: the tree. The copy that is broken has no build, so what needs one is planted as well.
set -u

source=${LOWKEY_SOURCE:?set LOWKEY_SOURCE to the source directory}
git -C "$source" rev-parse >/dev/null 2>&1 || { echo "skipped: not a git checkout"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

git -C "$source" ls-files -z --cached --others --exclude-standard |
  (cd "$source" && xargs -0 -I{} sh -c '[ ! -f "$1" ] || printf "%s\0" "$1"' _ {}) |
  tar -C "$source" --null -T - -cf - | tar -C "$work" -xf - || exit 1
cd "$work" || exit 1
git init -q . && git add -A . || exit 1

# expect NAME PATTERN: scripts/check fails and a line of its output matches.
expect() {
  scripts/check >out 2>err
  local status=$?
  if [ $status = 1 ] && grep -qE "$2" out; then
    echo "found: $1"
  else
    echo "FAILED: $1: status $status, no line matches $2"
    head -n 5 out err
    failed=1
  fi
}

# One break at a time; `git checkout` mends it.
mend() { git checkout -q . && git clean -fdq; }

printf '\n/* %s */\n' "$(printf 'x%.0s' {1..95})" >>lib/base/err.c
expect "a line of 101 columns" '^lib/base/err\.c:[0-9]+: 101 columns'
mend

mkdir -p programs/eval && cp lib/base/err.h programs/eval/err.h && git add programs/eval/err.h
expect "two files of one name" 'err\.h is also the name of'
git rm -qf programs/eval/err.h
mend

printf '\n/* The table is built anew. */\n' >>lib/base/err.c
expect "a phrase of the table in a comment" "^lib/base/err\.c:[0-9]+: 'anew'"
mend

printf '\nThe rows of which the mean is\ntaken.\n' >>docs/README.md
expect "a phrase of the table in a document, over two lines" "^docs/README\.md:[0-9]+: 'of which'"
mend

printf '\n#include "cache/cache.h"\n' >>lib/base/err.c
expect "an include that points up" '^lib/base/err\.c:[0-9]+: lib/base must not include cache/cache\.h'
mend

printf '\n#include "cache/cache.h"\n' >>programs/serve/http.c
expect "a program that looks inside the library" '^programs/serve/http\.c:[0-9]+: programs/serve must not include'
mend

printf '\nint lk_planted(void) { return 1; }\n' >>lib/base/err.c
expect "a function that no header declares" '^lib/base/err\.c:[0-9]+: lk_planted is not declared'
mend

printf '\n[gone](no-such-file.md)\n' >>docs/README.md
expect "a dead link" '^docs/README\.md:[0-9]+: a link to no-such-file'
mend

# A circle of calls, as object files show it.
objects=build/CMakeFiles/lowkey.dir/lib/base
mkdir -p $objects
for pair in "a b" "b a"; do
  # shellcheck disable=SC2086 # two words
  set -- $pair
  echo "void lk_$2(void); void lk_$1(void) { lk_$2(); }" | ${CC:-cc} -x c -c -o $objects/planted_"$1".c.o - || exit 1
done
expect "files that call each other in a circle" 'in a circle: lib/base/planted_a\.c -> lib/base/planted_b\.c \(lk_b\)'
rm -r build

if command -v clang-format >/dev/null && clang-format --version | grep -q ' 14\.'; then
  printf '\nstatic   int planted( void ){return 1;}\n' >>lib/base/err.c
  expect "unformatted code" '^lib/base/err\.c:[0-9]+: not formatted'
  mend
fi
exit $failed
