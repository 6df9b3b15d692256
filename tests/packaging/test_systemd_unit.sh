#!/usr/bin/env bash
# systemd accepts packaging/lowkey.service and finds little that it grants. Skipped (77) without systemd.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
source=${LOWKEY_SOURCE:?set LOWKEY_SOURCE to the source directory}
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not installed"; exit 77; }
systemd-analyze security --help 2>&1 | grep -q -- --offline ||
  { echo "systemd-analyze is older than version 250"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
max_exposure=15 # tenths of the scale from 0 (nothing) to 10 (everything)

# verify wants the program to exist.
sed "s|/usr/local/bin/lowkey|$bin|" "$source/packaging/lowkey.service" >"$work/lowkey.service"
messages=$(systemd-analyze verify --man=no "$work/lowkey.service" 2>&1) && [ -z "$messages" ] ||
  { echo "FAILED: verify: $messages"; exit 1; }
report=$(systemd-analyze security --offline=true --threshold=$max_exposure "$work/lowkey.service") ||
  { echo "FAILED: too many rights: $report"; exit 1; }
tail -n 1 <<<"$report"

# The options of ExecStart exist.
help=$("$bin" serve --help)
for option in $(sed -n 's/^ExecStart=//p' "$source/packaging/lowkey.service" | grep -o -- '--[a-z-]*'); do
  grep -q -- "$option" <<<"$help" || { echo "FAILED: lowkey serve has no $option"; exit 1; }
done
