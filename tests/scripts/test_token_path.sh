#!/usr/bin/env bash
# One decoded token enters at most this many files of lib/, and files of lib/ outside lib/cluster name other processes in
# at most this many lines (scripts/tree-size says how they are counted). The numbers may only become smaller. Skipped (77) without the tools, or if the build is not the checkout's.
set -u

most=36 most_lines=56 most_naming=8
source=${LOWKEY_SOURCE:?set LOWKEY_SOURCE to the checkout}
[ "${LOWKEY_BUILD:?set LOWKEY_BUILD to the build folder}" -ef "$source/build" ] || { echo "another build folder"; exit 77; }
for tool in python3 cc addr2line; do command -v $tool >/dev/null || { echo "no $tool"; exit 77; }; done
[ -x "$source/build/tests/write_tiny_models" ] || { echo "no write_tiny_models"; exit 77; }
text=$("$source/scripts/tree-size" --token) || { echo "FAILED: tree-size"; exit 1; }
files=$(sed -n 's/^one token: \([0-9]*\) files.*/\1/p' <<<"$text")
[ -n "$files" ] && [ "$files" -ge 10 ] || { echo "FAILED: nothing was counted"; exit 1; }
echo "$files files, at most $most"
[ "$files" -le "$most" ] || { echo "FAILED: one token enters $files files: $text"; exit 1; }

text=$("$source/scripts/tree-size" --peers) || { echo "FAILED: tree-size --peers"; exit 1; }
read -r lines naming < <(sed -n 's/^naming other processes: \([0-9]*\) lines, \([0-9]*\) files$/\1 \2/p' <<<"$text")
[ -n "$naming" ] && [ "$lines" -ge 10 ] || { echo "FAILED: no line was counted"; exit 1; }
echo "$lines lines in $naming files name other processes, at most $most_lines in $most_naming"
[ "$lines" -le "$most_lines" ] && [ "$naming" -le "$most_naming" ] || { echo "FAILED: $text"; exit 1; }
