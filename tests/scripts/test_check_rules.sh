#!/usr/bin/env bash
# scripts/check names every rule that is broken on purpose, and finds nothing before.
# LOWKEY_SOURCE: the tree, LOWKEY_BIN: the program. The copy that is broken has no build, so object files are planted as well.
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
git init -q . || exit 1

# ---- break the rules ----

printf '\n/* %s */\n' "$(printf 'x%.0s' {1..95})" >>lib/base/err.c
printf '\n/* The table is built anew. */\n' >>lib/base/ledger.c
printf '\n/* Let sequences fail here. */\n' >>lib/base/buf.c
printf '# that of\n%.0s' {1..300} >scripts/planted.txt
printf '\n#include "cache/cache.h"\n' >>lib/base/log.c
printf '\nint lk_not_declared(void) { return 1; }\n' >>lib/base/utf8.c
printf '\nstatic   int planted( void ){return 1;}\n' >>lib/base/clock.c
printf '\n#include "cache/cache.h"\n' >>programs/serve/http.c
printf '\n#define planted(status) ((status) == LK_OK)\n' >>programs/serve/http.c
cp lib/base/err.h programs/eval/err.h
printf '\nThe rows of which the mean is\ntaken.\n\n[gone](no-such-file.md)\n' >>docs/README.md
printf '\n    lowkey run --no-such-option\n    lowkey eval no_such_task --kv best-5\n' >>docs/README.md
printf '\n7. `lk_no_such_step` ends it.\n' >>docs/walks.md
program=build/CMakeFiles/lowkey.dir/programs/lowkey # small files and a circle of calls, as object files show them
objects=build/CMakeFiles/lowkey.dir/lib/base
mkdir -p $objects $program
ln -s "${LOWKEY_BIN:?set LOWKEY_BIN to the program}" build/lowkey
rm docs/papers/tale.csv
for pair in "a b" "b a"; do
  # shellcheck disable=SC2086 # two words
  set -- $pair
  echo "void lk_$2(void); void lk_$1(void) { lk_$2(); }" >lib/base/planted_"$1".c
  ${CC:-cc} -c -o $objects/planted_"$1".c.o lib/base/planted_"$1".c || exit 1
done
echo "int lk_main;" | ${CC:-cc} -x c -c -o $program/main.c.o - || exit 1

scripts/check >out 2>err
[ $? = 1 ] || { echo "FAILED: scripts/check did not fail"; failed=1; }

# expect NAME PATTERN: a finding matches.
expect() {
  if grep -qE "$2" out; then
    echo "found: $1"
  else
    echo "FAILED: $1: no line matches $2"
    failed=1
  fi
}
expect "a line of 101 columns" '^lib/base/err\.c:[0-9]+: 101 columns'
expect "two files of one name" 'err\.h is also the name of'
expect "a phrase of the table in a comment" "^lib/base/ledger\.c:[0-9]+: 'anew'"
expect "a phrase of the table in a document, over two lines" "^docs/README\.md:[0-9]+: '[a-z]* *of which'"
expect "the imperative 'Let'" "^lib/base/buf\.c:[0-9]+: 'Let sequences fail'"
expect "more genitive chains than the tree had" "^scripts/check:1: 'that of' and 'those of' stand [0-9]+ times"
expect "an include that points up" '^lib/base/log\.c:[0-9]+: lib/base must not include cache/cache\.h'
expect "a program that looks inside the library" '^programs/serve/http\.c:[0-9]+: programs/serve must not include'
expect "the other dialect of status" '^programs/serve/http\.c:[0-9]+: write .if \(status\)'
expect "a function that no header declares" '^lib/base/utf8\.c:[0-9]+: lk_not_declared is not declared'
expect "a walk that names a function which is gone" '^docs/walks\.md:[0-9]+: lk_no_such_step does not exist'
expect "a dead link" '^docs/README\.md:[0-9]+: a link to no-such-file'
expect "a page's command with an option that lowkey does not have" "^docs/README\.md:[0-9]+: 'lowkey run' has no --no-such-option"
expect "a page's command with a task that lowkey does not have" "^docs/README\.md:[0-9]+: 'lowkey eval' knows no 'no_such_task'"
expect "a page's recipe that does not parse" "^docs/README\.md:[0-9]+: lowkey: 'best-5' is not a recipe"
expect "data of a page that are missing" '^experiments/paper-tables:1: .*tale\.md: table 1, not in tale\.csv'
expect "a small file with one caller" '^lib/base/planted_a\.c:1: a file under 80 lines needs two callers; its callers: lib/base/planted_b\.c'
expect "files that call each other in a circle" 'circle: lib/base/planted_a\.c -> lib/base/planted_b\.c \(lk_b\)'
if command -v clang-format >/dev/null && clang-format --version | grep -q ' 14\.'; then
  expect "unformatted code" '^lib/base/clock\.c:[0-9]+: not formatted'
fi
# Nothing else: the tree itself follows the rules.
rest=$(grep -vE '^(scripts/check|experiments/paper-tables|lib/base/(err|buf|ledger|log|utf8|clock|planted_[ab])\.c|programs/serve/http\.c|docs/(README|walks)\.md|programs/eval/err\.h|lib/base/err\.h):' out)
[ -z "$rest" ] || { echo "FAILED: findings that were not planted:"; echo "$rest" | head; failed=1; }
[ $failed = 0 ] || { tail -n 5 err; }
exit $failed
