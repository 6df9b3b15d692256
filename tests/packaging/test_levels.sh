#!/usr/bin/env bash
# The launcher of packages and the Python package choose the same level of packaging/levels, the last one whose flags the
# CPU has; LOWKEY_CPU names another; a CPU without any gets one line.
set -euo pipefail

source=${LOWKEY_SOURCE:?set LOWKEY_SOURCE to the source directory}
command -v "${CC:-cc}" python3 >/dev/null || { echo "there is no compiler or no python3"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

mkdir -p "$work"/{bin,lib/lowkey}
"${CC:-cc}" -std=c11 -Wall -Wextra -Werror "$source/packaging/launcher.c" -o "$work/bin/lowkey"

# choose CPUINFO: what Python takes.
choose() {
  python3 - "$source/python/lowkey/_level.py" "$work/lib/lowkey/levels" "$1" <<'END'
import importlib.util, sys
spec = importlib.util.spec_from_file_location("level", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.choose(open(sys.argv[2]).read(), open(sys.argv[3]).read()))
END
}

# A table with flags that this CPU has, and one that it lacks.
present=$(sed -n '/^flags/{s/.*: //p;q}' /proc/cpuinfo)
read -r first second _ <<<"$present"
[ -n "$second" ] || { echo "/proc/cpuinfo has no flags"; exit 77; }
{
  echo "# name | options | flags"
  echo "low | A=ON | $first"
  echo "high | B=ON | $first $second"
  echo "later | C=ON | $first no_such_flag"
  echo "part | C=ON | ${first}x"
} >"$work/lib/lowkey/levels"
for level in low high later part; do
  mkdir "$work/lib/lowkey/$level"
  # shellcheck disable=SC2016 # a variable of the script that is written
  printf '#!/bin/sh\necho %s "$LOWKEY_CPU" "$@"\n' $level >"$work/lib/lowkey/$level/lowkey"
  chmod +x "$work/lib/lowkey/$level/lowkey"
done
unset LOWKEY_CPU
[ "$("$work/bin/lowkey" a 'b c')" = "high high a b c" ] || fail "the launcher did not run the program of level high"
[ "$(LOWKEY_CPU=later "$work/bin/lowkey")" = "later later" ] || fail "LOWKEY_CPU is not followed"
[ "$(choose /proc/cpuinfo)" = high ] || fail "Python does not take level high"
ln -s "$work/bin/lowkey" "$work/link"
[ "$("$work/link")" = "high high" ] || fail "the launcher does not run by a link"
if LOWKEY_CPU=none "$work/bin/lowkey" 2>"$work/err"; then fail "an unknown level runs"; fi
grep -q "lib/lowkey/none/lowkey: No such file" "$work/err" || fail "an unknown level: $(cat "$work/err")"

# The table of the tree, with each of its lines as the CPU.
cp "$source/packaging/levels" "$work/lib/lowkey/levels"
grep -v '^#' "$source/packaging/levels" | while IFS='|' read -r name _ flags; do
  echo "flags : fpu$flags" >"$work/cpuinfo"
  [ "$(choose "$work/cpuinfo")" = "${name% }" ] || fail "Python does not take ${name% } for its own flags"
done
grep -v '^#' "$source/packaging/levels-aarch64" | while IFS='|' read -r name _ flags; do
  echo "Features : fp asimd$flags" >"$work/cpuinfo"
  cp "$source/packaging/levels-aarch64" "$work/lib/lowkey/levels"
  [ "$(choose "$work/cpuinfo")" = "${name% }" ] || fail "Python does not take ${name% } for its own features"
done
mkdir "$work/lib/lowkey/cortex-a72"
printf '#!/bin/sh\necho base\n' >"$work/lib/lowkey/cortex-a72/lowkey"
chmod +x "$work/lib/lowkey/cortex-a72/lowkey"
[ "$("$work/bin/lowkey")" = base ] || fail "the launcher does not take a level that needs no flags"
cp "$source/packaging/levels" "$work/lib/lowkey/levels"
echo "flags : fpu sse2" >"$work/cpuinfo"
[ "$(choose "$work/cpuinfo")" = None ] || fail "Python takes a level for an old CPU"
sed -i 's/$/ no_such_flag/' "$work/lib/lowkey/levels"
if "$work/bin/lowkey" 2>"$work/err"; then fail "a CPU without a level runs"; fi
if [ "$(wc -l <"$work/err")" != 1 ] || ! grep -q "has no AVX2" "$work/err"; then fail "no level: $(cat "$work/err")"; fi
echo "test_levels: passed"
